"""Proxies in the environment: whether HTTP calls to an address would be sent to one.

The rules are those of httpx, which this project's clients use: an entry of NO_PROXY is a host, a
domain with its subdomains, or an address. Networks such as `10.0.0.0/8` match no address there.
"""

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

_OWN_MACHINE = ("localhost", "127.0.0.1", "::1")
"""Hosts that this project's clients reach directly, whatever the environment says."""


def proxy_variable(url: str, environment: Mapping[str, str]) -> str | None:
    """Return the variable that sends calls to a URL to a proxy; None if they go directly."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    if host in _OWN_MACHINE:
        return None
    excepted = environment.get(_named("no_proxy", environment) or "", "")
    if any(_excepts(entry.strip().lower(), host, parts.port) for entry in excepted.split(",")):
        return None
    return _named(f"{parts.scheme}_proxy", environment) or _named("all_proxy", environment)


def proxied_addresses(
    addresses: Iterable[str], environment: Mapping[str, str]
) -> tuple[str | None, tuple[str, ...]]:
    """Return the addresses to which calls would go by a proxy, after the first variable that does.

    Args:
        addresses: Addresses of machines.
        environment: Environment variables.
    """
    caught = {
        address: variable
        for address in sorted(addresses)
        if (variable := proxy_variable(f"http://{_in_url(address)}", environment)) is not None
    }
    return next(iter(caught.values()), None), tuple(caught)


def proxy_hint(url: str, environment: Mapping[str, str]) -> str:
    """Return the advice for a call to a URL that failed; empty if no proxy is involved."""
    variable = proxy_variable(url, environment)
    if variable is None:
        return ""
    host = urlsplit(url).hostname
    return f" (by the proxy of {variable}; to reach {host} directly, add it to NO_PROXY)"


def _named(name: str, environment: Mapping[str, str]) -> str | None:
    """Return a variable's name in the case in which it applies; None if it is unset or empty."""
    if name in environment:  # lower case comes first, and when empty hides upper case
        return name if environment[name] else None
    return name.upper() if environment.get(name.upper()) else None


def _excepts(entry: str, host: str, port: int | None) -> bool:
    """Return whether an entry of NO_PROXY matches a host and port."""
    if entry == "*":
        return True
    name, colon, number = entry.rpartition(":")
    if colon and number.isdigit() and ":" not in name:  # a colon may also be part of an address
        return int(number) == port and _excepts(name, host, port)
    if not entry:
        return False
    if entry.startswith("."):
        return host.endswith(entry)
    return host == entry or (not _is_address(entry) and host.endswith(f".{entry}"))


def _is_address(entry: str) -> bool:
    return ":" in entry or all(part.isdigit() for part in entry.split("."))


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address
