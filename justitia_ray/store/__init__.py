"""State that outlives a process: the Redis schema, its clients, and an embedded Redis server."""
