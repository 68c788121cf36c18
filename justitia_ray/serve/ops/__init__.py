"""Operators' tools around a cluster: check a file, start one here, shut applications down."""
