"""Tests of the agents and their loads against an in-memory service."""
