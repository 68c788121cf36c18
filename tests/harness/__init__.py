"""Test harnesses larger than fixtures: chaos on a real cluster, simulation of the protocol."""
