"""Connections between ingress, scheduler and replica: WebSockets with typed calls."""
