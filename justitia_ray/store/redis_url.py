"""Parse `redis_url` without connecting: one server, Sentinel, or Cluster."""

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import SplitResult, urlsplit

from justitia_ray.errors import ConfigError

FORMS = (
    "redis://host:port/db, unix:///path, redis+sentinel://host:port,host:port/service/db or"
    " redis+cluster://host:port,host:port, with rediss in place of redis for TLS,"
)

_REDIS_PORT = 6379
_SENTINEL_PORT = 26379


class Setup(StrEnum):
    """Kind of Redis setup that a URL names."""

    SERVER = "server"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


_SCHEMES = {
    "redis": (Setup.SERVER, False),
    "rediss": (Setup.SERVER, True),
    "unix": (Setup.SERVER, False),
    "redis+sentinel": (Setup.SENTINEL, False),
    "rediss+sentinel": (Setup.SENTINEL, True),
    "redis+cluster": (Setup.CLUSTER, False),
    "rediss+cluster": (Setup.CLUSTER, True),
}


_DATABASE = re.compile(r"/?|/[0-9]{1,9}/?")
"""Path of the URL of a single server: none, or the number of a database."""


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A parsed `redis_url`."""

    setup: Setup
    text: str
    """Original Redis URL; redis-py parses it again in the case of a single server."""
    address: str
    """Redis URL without its options, for error messages."""
    tls: bool
    hosts: tuple[tuple[str, int], ...] = ()
    """Addresses of Sentinels, or of cluster nodes."""
    service: str = ""
    """Name of the master in Redis Sentinel."""
    db: int = 0


def read_redis_url(url: str) -> RedisUrl:
    """Parse a Redis URL, which must not contain a secret.

    Raises:
        ConfigError: If it is malformed, or contains a user or a password; the message does not
            contain the URL.
    """
    if "@" in url:
        raise ConfigError(
            "redis_url must not carry a user or a password (not shown): name them in"
            " redis_username and redis_password_env"
        )
    try:
        parts = urlsplit(url)
        setup, tls = _SCHEMES[parts.scheme]
        if setup is Setup.SERVER:
            return RedisUrl(setup, url, _address_of_server(parts), tls)
        default = _SENTINEL_PORT if setup is Setup.SENTINEL else _REDIS_PORT
        hosts = tuple(_split_host(text, default) for text in parts.netloc.split(","))
        service, db = _split_path(setup, parts)
    except (KeyError, ValueError):
        # The cause is suppressed, because the parser's message quotes parts of the URL.
        raise ConfigError(
            f"redis_url cannot be read (not shown, it may hold a password): {FORMS} is allowed;"
            " percent-encode special characters"
        ) from None
    address = f"{parts.scheme}://{parts.netloc}" + (f"/{service}" if service else "")
    return RedisUrl(setup, url, address, tls, hosts, service, db)


def _address_of_server(parts: SplitResult) -> str:
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    # redis-py reads database 0 from a path that is no number, and localhost without a host.
    if not parts.hostname or parts.port == 0 or not _DATABASE.fullmatch(parts.path):
        raise ValueError
    return f"{parts.scheme}://{parts.hostname}:{parts.port or _REDIS_PORT}"


def _split_host(text: str, default_port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError
    return parts.hostname, parts.port or default_port


def _split_path(setup: Setup, parts: SplitResult) -> tuple[str, int]:
    """Return the service name of Sentinel and the database number."""
    if parts.query or parts.fragment:
        raise ValueError
    words = [word for word in parts.path.split("/") if word]
    if setup is Setup.CLUSTER:
        if words not in ([], ["0"]):  # a cluster has only database 0
            raise ValueError
        return "", 0
    if not 1 <= len(words) <= 2:
        raise ValueError
    return words[0], int(words[1]) if len(words) == 2 else 0
