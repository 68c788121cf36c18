"""The Ingress deployment: HTTP, the queue's client, calls to leased replicas."""
