"""HTTP proxies in the environment: whether calls to an address would go through a proxy.

The rules are those of httpx, which this project's clients use: an entry of NO_PROXY is a host, a
domain with its subdomains, or an address. Networks such as `10.0.0.0/8` match no address there.
"""

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

_OWN_MACHINE = ("localhost", "127.0.0.1", "::1")
"""Local host names, which this project's clients call without a proxy in any environment."""


def proxy_variable(url: str, environment: Mapping[str, str]) -> str | None:
    """Return the environment variable whose HTTP proxy applies to a URL; None if none does."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    if host in _OWN_MACHINE:
        return None
    excepted = environment.get(_set_variable("no_proxy", environment) or "", "")
    if any(
        _no_proxy_matches(entry.strip().lower(), host, parts.port) for entry in excepted.split(",")
    ):
        return None
    return _set_variable(f"{parts.scheme}_proxy", environment) or _set_variable(
        "all_proxy", environment
    )


def proxied_addresses(
    addresses: Iterable[str], environment: Mapping[str, str]
) -> tuple[str | None, tuple[str, ...]]:
    """Return the addresses called through an HTTP proxy, each with the proxy's variable.

    Args:
        addresses: Addresses of machines.
        environment: Environment variables.
    """
    caught = {
        address: variable
        for address in sorted(addresses)
        if (variable := proxy_variable(f"http://{_bracketed(address)}", environment)) is not None
    }
    return next(iter(caught.values()), None), tuple(caught)


def proxy_hint(url: str, environment: Mapping[str, str]) -> str:
    """Return advice for a failed call to a URL; empty if no HTTP proxy applies."""
    variable = proxy_variable(url, environment)
    if variable is None:
        return ""
    host = urlsplit(url).hostname
    return f" (by the proxy of {variable}; to reach {host} directly, add it to NO_PROXY)"


def _set_variable(name: str, environment: Mapping[str, str]) -> str | None:
    """Return the name of a set proxy variable, in lower or upper case; None if it is not set."""
    if name in environment:  # The variable in lower case has priority, even when it is empty.
        return name if environment[name] else None
    return name.upper() if environment.get(name.upper()) else None


def _no_proxy_matches(entry: str, host: str, port: int | None) -> bool:
    """Return whether an entry of NO_PROXY matches a host and port."""
    if entry == "*":
        return True
    name, colon, number = entry.rpartition(":")
    if colon and number.isdigit() and ":" not in name:  # the colon may be part of an IPv6 address
        return int(number) == port and _no_proxy_matches(name, host, port)
    if not entry:
        return False
    if entry.startswith("."):
        return host.endswith(entry)
    return host == entry or (not _is_address(entry) and host.endswith(f".{entry}"))


def _is_address(entry: str) -> bool:
    return ":" in entry or all(part.isdigit() for part in entry.split("."))


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
