"""Connections between our own processes: each file here has one part of them."""
