"""Credentials, without a service around them."""
