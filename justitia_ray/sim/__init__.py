"""Simulator: the service's own SchedulerCore with modelled replicas, by discrete events.

It uses no clock, no Ray and no vLLM: equal inputs give equal results, to the last digit.
"""
