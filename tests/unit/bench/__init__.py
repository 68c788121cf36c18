"""Tests of the benchmark scripts, without a service."""
