"""Quotas of tenants as a pure book: windows, claims, and exchanges with each scheduler."""
