"""Tests of the workloads that can be asked for by name."""
