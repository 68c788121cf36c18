"""Chaos: every part of the running service is broken under load, and the losses are counted.

A plan says which faults are injected and when, a load which applications call meanwhile; both are
functions of a seed. Callers and replicas record all that they do. From the records come the counts
of what was lost, doubled or wrong, the order of grants, and the time to recover from each fault.
`scripts/chaos` runs it at length, `tests/integration/test_chaos.py` in short.
"""
