"""Tests of what the console shows."""
