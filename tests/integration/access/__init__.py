"""Tests of access control: one application with API keys and tokens, called by several tenants."""
