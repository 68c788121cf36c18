"""Tests of the pure parts of `scripts/chaos`."""
