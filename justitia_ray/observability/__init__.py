"""Exported metrics, log lines and traces."""
