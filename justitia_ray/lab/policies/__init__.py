"""Baselines of the papers, by the names of `core.policies.LAB_POLICIES`; see README.md."""
