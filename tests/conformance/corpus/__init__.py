"""Request bodies of real clients, by path and name, for vLLM's own server and this service."""
