"""Quotas of tenants without I/O: usage windows, claims on quotas, messages with schedulers."""
