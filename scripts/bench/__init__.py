"""Benchmark code that measures a running service from outside: load, CPU time, reports.

Nothing in this package imports Ray.
"""
