"""Sessions of real coding agents, simulated on replicas with vLLM's prefix cache.

Each turn's prompt repeats all earlier turns. Between turns a tool runs or a user reads, and the
replica's cache may lose the context. The schedulers that are compared, the *arms*, are this
project's core and re-implementations of others.
"""
