"""A cluster with Serve's own proxy: TLS for callers, and the operator's limit of a call's time."""
