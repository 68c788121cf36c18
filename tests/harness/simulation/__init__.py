"""Deterministic simulation of the protocol: the real parts in virtual time, under injected faults.

Scheduler service and core, ingress and gateway, puller, lease table and fake engine are those of
the service. The network between them is simulated: it delays, loses, repeats and reorders messages.
The store goes away; processes die, pause and return. All of it follows from a seed, so that a
failure can be reproduced. `run.play` plays one simulation, `search` many; `checks` and `recorder`
hold the rules.

Ray, Redis and machines are not tested here but by the chaos runs.
"""
