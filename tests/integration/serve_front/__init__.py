"""Tests on Serve's own proxy: TLS for callers, and the operator's time limit of a call."""
