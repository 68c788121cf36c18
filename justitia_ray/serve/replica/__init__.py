"""Replica deployment: an engine, its leases, and the loop that pulls leases."""
