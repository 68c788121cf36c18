"""The pure parts of `scripts/chaos`."""
