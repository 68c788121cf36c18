"""Predictions of an application's cost when it arrives; imports neither Ray nor Redis."""
