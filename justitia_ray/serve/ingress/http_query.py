"""Query parameter of the service's own paths: the number of applications to list."""

from justitia_ray.errors import RequestError, shown_short
from justitia_ray.protocol.inspection import MAX_LISTED_APPLICATIONS


def how_many(text: str, name: str) -> int:
    """Parse the number of applications to list from a query parameter.

    Args:
        text: Value of the parameter.
        name: Name of the parameter.

    Raises:
        RequestError: If the text is not an integer, or the number is too large.
    """
    if text.isascii() and text.isdecimal() and len(text) <= 9:
        most = int(text)
        if most <= MAX_LISTED_APPLICATIONS:
            return most
    raise RequestError(
        f"{name} is {shown_short(text)}: an integer from 0 to {MAX_LISTED_APPLICATIONS:,} is"
        " allowed",
        name,
    )
