"""State that outlives a process: Redis schema, its clients, and an embedded Redis server."""
