"""Tests of the connections between the service's processes."""
