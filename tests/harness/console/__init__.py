"""A stand-in for the service behind the console page, with known states and faults."""
