"""Paths whose query says which of several models is meant."""

from urllib.parse import quote


def of_model(path: str, model: str | None) -> str:
    """Return a path whose query names a model, if one is given."""
    return path if model is None else f"{path}?model={quote(model, safe='')}"
