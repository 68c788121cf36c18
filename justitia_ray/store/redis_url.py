"""The forms of `redis_url`, read without connecting: one server, Sentinel, Cluster."""

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
    """Redis setup behind a URL."""

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


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A URL that was read."""

    setup: Setup
    text: str
    """URL as given: redis-py reads that of one server itself."""
    address: str
    """URL fit for messages: without options."""
    tls: bool
    hosts: tuple[tuple[str, int], ...] = ()
    """Addresses of Sentinels, or of nodes of a cluster."""
    service: str = ""
    """Sentinel's name for the master."""
    db: int = 0


def read_redis_url(url: str) -> RedisUrl:
    """Read a URL that carries no secret.

    Raises:
        ConfigError: If it has another form, or carries a user or a password; it is not quoted.
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
            return RedisUrl(setup, url, _server_address(parts), tls)
        default = _SENTINEL_PORT if setup is Setup.SENTINEL else _REDIS_PORT
        hosts = tuple(_host(text, default) for text in parts.netloc.split(","))
        service, db = _path(setup, parts)
    except (KeyError, ValueError):
        # Without the cause: the parser's message quotes parts of the URL.
        raise ConfigError(
            f"redis_url cannot be read (not shown, it may hold a password): {FORMS} is allowed;"
            " percent-encode special characters"
        ) from None
    address = f"{parts.scheme}://{parts.netloc}" + (f"/{service}" if service else "")
    return RedisUrl(setup, url, address, tls, hosts, service, db)


def _server_address(parts: SplitResult) -> str:
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    return f"{parts.scheme}://{parts.hostname}:{parts.port or _REDIS_PORT}"


def _host(text: str, default_port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError
    return parts.hostname, parts.port or default_port


def _path(setup: Setup, parts: SplitResult) -> tuple[str, int]:
    """Return Sentinel's service and the database."""
    if parts.query or parts.fragment:
        raise ValueError
    words = [word for word in parts.path.split("/") if word]
    if setup is Setup.CLUSTER:
        if words not in ([], ["0"]):  # a cluster has no other database
            raise ValueError
        return "", 0
    if not 1 <= len(words) <= 2:
        raise ValueError
    return words[0], int(words[1]) if len(words) == 2 else 0
