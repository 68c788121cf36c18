"""Shared code of the benchmarks, which measure a running service from outside.

Nothing in this package imports Ray.
"""
