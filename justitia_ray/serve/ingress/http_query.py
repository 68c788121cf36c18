"""Queries of this service's own paths: how many applications a listing is to have."""

from justitia_ray.errors import RequestError, shown_short
from justitia_ray.protocol.inspection import MAX_LISTED_APPLICATIONS


def how_many(text: str, name: str) -> int:
    """Read the number of applications that a listing is to have.

    Args:
        text: Value in the query.
        name: Name of the value there.

    Raises:
        RequestError: If the text is no such number, or it is too large.
    """
    if text.isdecimal() and len(text) <= 9:
        most = int(text)
        if most <= MAX_LISTED_APPLICATIONS:
            return most
    raise RequestError(
        f"{name} is {shown_short(text)}: an integer from 0 to {MAX_LISTED_APPLICATIONS:,} is"
        " allowed",
        name,
    )
