"""Tests of logs, metrics and traces without a cluster."""
