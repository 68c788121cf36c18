"""Accounts of an application's quotas: one actor for all its models."""
