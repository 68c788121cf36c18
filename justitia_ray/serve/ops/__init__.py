"""Operators' tools for a cluster: check a file, start a cluster here, shut applications down."""
