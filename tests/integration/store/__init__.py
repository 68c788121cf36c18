"""What is kept in Redis, against a real server."""
