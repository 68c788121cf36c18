"""Tests of the stores without Redis."""
