"""How the stores reach Redis: one client, and Redis's failures as `StoreError`."""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from justitia_ray.errors import ConfigError, StoreError

# A save holds a few megabytes at most. An unreachable Redis has to be noticed well within the 3 s
# that replicas are given to report to a new scheduler; a busy one may take longer to answer.
_CONNECT_TIMEOUT_S = 2.0
_ANSWER_TIMEOUT_S = 5.0

_SCHEMES = "redis://host:port/db, rediss://host:port/db or unix:///path"


class Connection:
    """A lazily connected Redis client for one event loop, with an address fit for messages."""

    def __init__(self, url: str, password: str | None = None) -> None:
        """Parse the URL; nothing is connected before the first command.

        Args:
            url: `redis://`, `rediss://` or `unix://`. It may hold a password, so it is never shown.
            password: Used if the URL holds none.

        Raises:
            ConfigError: If the URL cannot be read.
        """
        try:
            self.address = _address(url)
            self.client = Redis.from_url(
                url,
                password=password,
                socket_connect_timeout=_CONNECT_TIMEOUT_S,
                socket_timeout=_ANSWER_TIMEOUT_S,
                # Once, at once: a pooled connection may be left from before Redis restarted.
                # Waiting and trying again is the caller's, who knows what else there is to do.
                retry=Retry(NoBackoff(), 1),
            )
        except ValueError:
            # Without the cause: the parser's message quotes parts of the URL.
            raise ConfigError(
                f"redis_url cannot be read (not shown, it may hold a password): {_SCHEMES} is"
                " allowed; percent-encode special characters"
            ) from None

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what redis-py raises inside the block into `StoreError`.

        Raises:
            StoreError: If Redis cannot be reached, gave no answer in time or refused.
        """
        try:
            yield
        except (RedisError, OSError, UnicodeError) as error:
            raise StoreError(f"Redis at {self.address}: {error}") from error

    async def ping(self) -> bool:
        """Return whether Redis answers; an answer of no is no error."""
        try:
            return bool(await self.client.ping())
        except (RedisError, OSError):
            return False

    async def aclose(self) -> None:
        """Close the connections; the object is of no use afterwards."""
        await self.client.aclose()


def _address(url: str) -> str:
    """Return the URL without user, password and options."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    return f"{parts.scheme}://{parts.hostname}:{parts.port or 6379}"
