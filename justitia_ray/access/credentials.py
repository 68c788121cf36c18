"""Find the credential in the headers of an HTTP call, without ever logging it."""

from collections import Counter
from collections.abc import Iterable

from justitia_ray.errors import RequestError, Unauthenticated

_AUTHORIZATION = b"authorization"
_API_KEY = b"x-api-key"
_SCHEME = b"bearer "


def find_credential(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the API key or token of an HTTP request; None without one.

    Args:
        headers: Names in lower case, and values.

    Raises:
        Unauthenticated: If a credential is malformed, or two different ones are given.
    """
    found = set()
    for name, value in headers:
        if name == _API_KEY:
            found.add(value.strip())
        elif name == _AUTHORIZATION:
            if value[: len(_SCHEME)].lower() != _SCHEME:
                raise Unauthenticated("Authorization: only the scheme Bearer is allowed")
            found.add(value[len(_SCHEME) :].strip())
    if len(found) > 1:
        raise Unauthenticated("Authorization and x-api-key hold two credentials: one is allowed")
    if not found:
        return None
    credential = found.pop()
    if not credential or not credential.isascii():
        raise Unauthenticated("the credential is empty or holds other characters than ASCII")
    return credential.decode("ascii")


def check_single(headers: Iterable[tuple[bytes, bytes]], identifying: Iterable[bytes]) -> None:
    """Check that no header that identifies the caller occurs twice in a request.

    A proxy and its caller may each have set the header, and readers differ in which value they use.

    Args:
        headers: Names in lower case, and values.
        identifying: Names of identifying headers besides those of credentials.

    Raises:
        RequestError: If a header occurs twice; the message names it.
    """
    times = Counter(name for name, _ in headers)
    for name in (_AUTHORIZATION, _API_KEY, *identifying):
        if times[name] > 1:
            raise RequestError(
                f"the header {name.decode()} comes {times[name]} times: once is allowed"
            )
