"""Tests of the scheduling core, event by event."""
