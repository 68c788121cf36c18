"""Baseline policies of the papers, named in `core.policies.LAB_POLICIES`; see README.md."""
