"""Bodies as clients send them, by path and name, for vLLM's own server and this service."""
