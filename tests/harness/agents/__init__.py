"""Third-party agent libraries run against a scripted model, to record what real clients send."""
