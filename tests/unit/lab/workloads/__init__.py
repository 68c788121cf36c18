"""The agents and their loads against a service in memory."""
