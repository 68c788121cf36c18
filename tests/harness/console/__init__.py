"""A stand-in for the service behind the console's page, with known states and faults."""
