"""Tests of the quota book, one exchange at a time."""
