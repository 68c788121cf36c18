"""Stores tested against a real Redis server."""
