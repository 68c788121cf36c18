"""Test harnesses beyond fixtures: chaos on a real cluster, simulation of the protocol."""
