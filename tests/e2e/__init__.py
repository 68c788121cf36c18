"""End-to-end tests with real engines."""
