"""The scheduling core, event by event."""
