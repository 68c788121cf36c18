"""The serving side without Ray."""
