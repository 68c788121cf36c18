"""Chaos runs: break each part of the running service under load, and count the losses.

A plan lists the faults and their times; a load lists the applications that call meanwhile. Both are
functions of a seed. Callers and replicas record everything they do. The records give the counts of
lost, duplicated and wrong answers, the order of grants, and the recovery time of each fault.
`scripts/chaos` runs it at length, `tests/integration/test_chaos.py` briefly.
"""
