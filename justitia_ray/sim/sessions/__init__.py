"""Sessions of real coding agents, played on modelled replicas with vLLM's prefix cache.

Each turn sends all that was said before. Between turns a tool runs or a person reads, and the
replica's cache keeps the context, or not. The arms are this project's core, and re-implementations
of what others do.
"""
