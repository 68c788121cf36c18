"""Simulator: the service's own SchedulerCore before modelled replicas, jumping between events.

No clock, no Ray, no vLLM: the same inputs give the same results, to the last digit.
"""
