"""Stand-in for a Ray actor handle whose methods a test writes."""

from types import SimpleNamespace


class ActorHandle:
    """Fake actor handle: each method `_name` of a subclass becomes the remote method `name`."""

    def __getattr__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(remote=object.__getattribute__(self, f"_{name}"))
