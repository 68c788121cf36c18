"""What an operator sees, without a cluster."""
