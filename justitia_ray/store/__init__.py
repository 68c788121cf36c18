"""State that outlives a process: the Redis schema, its two clients, an embedded Redis server."""
