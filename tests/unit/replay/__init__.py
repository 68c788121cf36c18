"""Replays, against a service in memory."""
