"""The accounts of an application's quotas: one actor for all its models."""
