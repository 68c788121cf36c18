"""What an operator sees: canonical log lines."""
