"""Tests of the client with an in-memory service."""
