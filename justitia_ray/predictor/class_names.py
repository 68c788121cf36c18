"""Names of application classes: their form, and a bound on the classes with an own entry.

Names come from callers, and become keys and metric labels.
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, TypeAlias, TypeVar

from pydantic import Field

from justitia_ray.errors import RequestError

OTHER = "other"
"""Class that all classes beyond the largest allowed number share."""

_CLASS_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
ClassName: TypeAlias = Annotated[str, Field(pattern=f"^{_CLASS_NAME.pattern}$")]
_Known = TypeVar("_Known")


def check_class_name(application_class: str) -> None:
    """Check that a name is 1 to 64 letters, digits, dots, underscores and hyphens.

    Raises:
        RequestError: If the name has another form.
    """
    if not _CLASS_NAME.fullmatch(application_class):
        raise RequestError(
            f"application_class is {application_class[:80]!r}: 1 to 64 of A-Z a-z 0-9 . _ - are"
            " allowed",
            param="application_class",
        )


def entry_of_class(application_class: str, known: Collection[str], max_classes: int) -> str:
    """Return the class whose statistics are used: itself, or `other` if there are too many."""
    named = len(known) - (OTHER in known)
    if application_class in known or named < max_classes:
        return application_class
    return OTHER


def largest_classes(
    classes: Mapping[str, _Known], samples: Callable[[_Known], int], max_classes: int
) -> dict[str, _Known]:
    """Return the `bound` classes with the most samples, sorted by name if equal."""
    order = sorted(classes, key=lambda name: (name != OTHER, -samples(classes[name]), name))
    return {name: classes[name] for name in order[: max_classes + (OTHER in classes)]}
