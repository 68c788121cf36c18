"""Names of application classes: their form, and the bound on how many have an entry of their own.

Callers make the names, which become keys and metric labels.
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, TypeAlias, TypeVar

from pydantic import Field

from justitia_ray.errors import RequestError

OTHER = "other"
"""The class that all classes beyond the bound share; it takes nobody's place."""

_CLASS_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
ClassName: TypeAlias = Annotated[str, Field(pattern=f"^{_CLASS_NAME.pattern}$")]
_Known = TypeVar("_Known")


def check_class_name(application_class: str) -> None:
    """Accept 1 to 64 letters, digits, dots, underscores and hyphens.

    Raises:
        RequestError: Otherwise.
    """
    if not _CLASS_NAME.fullmatch(application_class):
        raise RequestError(
            f"application_class is {application_class[:80]!r}: 1 to 64 of A-Z a-z 0-9 . _ - are"
            " allowed",
            param="application_class",
        )


def entry_of_class(application_class: str, known: Collection[str], max_classes: int) -> str:
    """Return whose entry a class has: its own, or that of `other` beyond the bound."""
    named = len(known) - (OTHER in known)
    if application_class in known or named < max_classes:
        return application_class
    return OTHER


def largest_classes(
    classes: Mapping[str, _Known], samples: Callable[[_Known], int], max_classes: int
) -> dict[str, _Known]:
    """Return as many classes as the bound allows: those with most samples, then by name."""
    order = sorted(classes, key=lambda name: (name != OTHER, -samples(classes[name]), name))
    return {name: classes[name] for name in order[: max_classes + (OTHER in classes)]}
