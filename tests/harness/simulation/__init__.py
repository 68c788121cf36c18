"""Deterministic simulation of the protocol: the real parts in virtual time, and all that can fail.

Scheduler service and core, ingress and gateway, puller, lease table and fake engine are those of
the service. What stands between them is not: a network that delays, loses, repeats and reorders, a
store that goes away, processes that die, stand still and come back. A seed decides all of it, so
a failure can be looked at again. `run.play` plays one, `search` many, `checks` and `recorder` say
what must hold.

Not a test of Ray, Redis or a machine: that is what the chaos runs are for.
"""
