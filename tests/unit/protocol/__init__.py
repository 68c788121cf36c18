"""Tests of the messages between the processes."""
