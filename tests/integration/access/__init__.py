"""Access control: one application with API keys and tokens, and the calls of its tenants."""
