"""Classes are made by callers, so those with an entry of their own are bounded in number."""

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

OTHER = "other"
"""The class that all classes beyond the bound share; it takes nobody's place."""

_Known = TypeVar("_Known")


def filed_under(application_class: str, known: Collection[str], max_classes: int) -> str:
    """Return whose entry a class has: its own, or that of `other` beyond the bound."""
    named = len(known) - (OTHER in known)
    if application_class in known or named < max_classes:
        return application_class
    return OTHER


def best_known(
    classes: Mapping[str, _Known], samples: Callable[[_Known], int], max_classes: int
) -> dict[str, _Known]:
    """Return as many classes as the bound allows: those with most samples, then by name."""
    order = sorted(classes, key=lambda name: (name != OTHER, -samples(classes[name]), name))
    return {name: classes[name] for name in order[: max_classes + (OTHER in classes)]}
