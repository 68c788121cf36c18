"""The coding harnesses that people run, from npm, against the service on a scripted model."""
