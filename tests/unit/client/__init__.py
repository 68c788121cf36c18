"""The client against a service in memory."""
