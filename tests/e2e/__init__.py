"""The serving path with real engines."""
