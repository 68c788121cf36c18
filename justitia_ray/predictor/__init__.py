"""Predictions of an application's cost on its arrival; imports neither Ray nor Redis."""
