"""Tests of the scheduler actor."""
