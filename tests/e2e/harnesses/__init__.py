"""Coding agents from npm, unmodified, against the service with a scripted model."""
