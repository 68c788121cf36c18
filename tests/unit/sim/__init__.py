"""The simulator and its files."""
