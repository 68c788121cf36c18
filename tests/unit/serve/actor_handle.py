"""A handle of an actor whose methods a test writes."""

from types import SimpleNamespace


class ActorHandle:
    """Has the methods of its subclass that begin with a `_`, without it."""

    def __getattr__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(remote=object.__getattribute__(self, f"_{name}"))
