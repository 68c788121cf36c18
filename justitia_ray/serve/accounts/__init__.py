"""Accounts of a Serve application's quotas: one actor for all its models."""
