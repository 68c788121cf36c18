"""Tests of the rules of `justitia doctor` with simulated services."""
