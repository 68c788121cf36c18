"""Faults on real processes under load, and what is counted then: the pure parts of `scripts/chaos`.

A plan says which faults strike and when, a load who calls meanwhile; both are functions of a seed.
Callers note every call, replicas keep a journal of every run, and from these two everything is
counted: lost, doubled, wrong, order, time to recover. `justitia_ray.serve.chaos_run` joins them
with Ray.
"""
