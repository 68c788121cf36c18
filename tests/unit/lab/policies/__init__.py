"""Tests of the lab's policies."""
