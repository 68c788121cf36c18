"""Metrics and their series, log lines, and traces."""
