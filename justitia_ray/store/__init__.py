"""What outlives a process: the Redis schema, its two clients, and a Redis server of our own."""
