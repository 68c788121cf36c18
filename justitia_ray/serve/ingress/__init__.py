"""Ingress deployment: the HTTP API, the client of the queue, and calls to leased replicas."""
