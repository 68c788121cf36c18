"""Quotas of tenants as a pure book: windows, claims, and an exchange with each scheduler."""
