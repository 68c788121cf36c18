"""Tests of the named workload suites."""
