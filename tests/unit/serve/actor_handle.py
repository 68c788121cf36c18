"""Stand-in for a Ray actor handle whose methods a test writes."""

from types import SimpleNamespace


class ActorHandle:
    """Actor handle that exposes each method `_name` of its subclass as the remote method `name`."""

    def __getattr__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(remote=object.__getattribute__(self, f"_{name}"))
