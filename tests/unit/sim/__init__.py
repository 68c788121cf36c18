"""Tests of the simulator and its files."""
