"""Agents on other people's libraries against a scripted model: traces of what real clients send."""
