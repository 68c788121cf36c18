"""Simulator: the service's own SchedulerCore with modelled replicas, in discrete events.

It uses no clock, no Ray and no vLLM: equal inputs give equal results, to the last digit.
"""
