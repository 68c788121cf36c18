"""Unit tests: synchronous, without processes, sockets or sleeps."""
