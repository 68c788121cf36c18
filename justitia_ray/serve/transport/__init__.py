"""The connections between ingress, scheduler and replica: WebSockets that carry typed calls."""
