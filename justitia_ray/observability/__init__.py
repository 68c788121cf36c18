"""Metrics, their series, the canonical log lines, and the dashboard that ships."""
