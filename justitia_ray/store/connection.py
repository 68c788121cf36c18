"""Connection of the stores to Redis: one client, whose failures are raised as `StoreError`."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError, RedisClusterException, RedisError

from justitia_ray.errors import ConfigError, StoreError
from justitia_ray.store.redis_url import RedisUrl, Setup, read_redis_url

# An unreachable Redis must be noticed well within the 3 s in which replicas report.
# Answers may take longer, if Redis is busy or a save has some megabytes.
_CONNECT_TIMEOUT_S = 2.0
_ANSWER_TIMEOUT_S = 5.0

_FAILURES = (RedisError, RedisClusterException, OSError, UnicodeError)


@dataclass(frozen=True, slots=True)
class Credentials:
    """User, passwords and certificates for Redis, kept apart from the URL."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)
    tls_ca_file: str | None = None
    """File of trusted CA certificates for Redis; None: the system's."""
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    password_file: str | None = None
    """File with the Redis password, read at each connect; replaces `password`."""
    sentinel_password_file: str | None = None


NO_CREDENTIALS = Credentials()


class Connection:
    """Redis client for one event loop that connects at its first use.

    All writes are scripts: a script uses only keys of one model, which are in one slot, so it also
    runs on a Redis Cluster.

    Args:
        url: One of `redis_url.FORMS`.
        credentials: User, password and certificates; None for none.

    Raises:
        ConfigError: If the URL or a TLS file cannot be read.
    """

    def __init__(self, url: str, credentials: Credentials | None = None) -> None:
        read = read_redis_url(url)
        self.address = read.address
        credentials = credentials or NO_CREDENTIALS
        self._password_hint = _authentication_advice(credentials)
        self._close: list[Callable[[], Awaitable[None]]] = []
        try:
            # The three client types have no common base class.
            self.client: Any = self._new_client(read, credentials)
        except (ValueError, TypeError):
            raise ConfigError(f"redis_url: {self.address} has an option of another form") from None
        self._close.append(self.client.aclose)

    def _new_client(self, url: RedisUrl, credentials: Credentials) -> Any:
        tls = _tls_options(credentials) if url.tls else {}
        timeouts: dict[str, Any] = {
            "socket_connect_timeout": _CONNECT_TIMEOUT_S,
            "socket_timeout": _ANSWER_TIMEOUT_S,
            # One immediate retry, because Redis may have restarted since the connection was opened.
            "retry": Retry(NoBackoff(), 1),
        }
        options = timeouts | _auth_options(
            credentials.username, credentials.password, credentials.password_file
        )
        if url.setup is Setup.SERVER:
            return Redis.from_url(url.text, **options, **tls)
        if url.tls:
            tls["ssl"] = True
        if url.setup is Setup.CLUSTER:
            nodes = [ClusterNode(host, port) for host, port in url.hosts]
            return RedisCluster(startup_nodes=nodes, **options, **tls)
        sentinel = Sentinel(  # type: ignore[no-untyped-call]
            list(url.hosts),
            sentinel_kwargs=timeouts
            | _auth_options(None, credentials.sentinel_password, credentials.sentinel_password_file)
            | tls,
            **options,
            **tls,
            db=url.db,
        )
        self._close += [one.aclose for one in sentinel.sentinels]
        return sentinel.master_for(url.service)

    @asynccontextmanager
    async def errors(self) -> AsyncIterator[None]:
        """Convert redis-py's errors inside the block into `StoreError`, and close the connections.

        A server that has become read-only, or is no longer the master, leaves its connections open,
        and another server may have taken over its address.

        Raises:
            StoreError: If Redis is unreachable, does not answer in time or refuses the command.
        """
        try:
            yield
        except _FAILURES as error:
            await self._close_idle()
            hint = self._password_hint if _is_auth_error(error) else ""
            raise StoreError(f"Redis at {self.address}: {error}{hint}") from error

    async def _close_idle(self) -> None:
        """Close the idle connections; the next command opens a new one."""
        with suppress(*_FAILURES):
            if isinstance(self.client, RedisCluster):
                await self.client.aclose()  # The next command looks up the cluster's nodes again.
            else:
                await self.client.connection_pool.disconnect(inuse_connections=False)

    async def ping(self) -> bool:
        """Return whether Redis answers; failures do not raise errors."""
        try:
            return bool(await self.client.ping())
        except _FAILURES:
            return False

    async def aclose(self) -> None:
        for close in self._close:
            await close()


class _PasswordFile(CredentialProvider):
    """Credentials of redis-py with a password file, which is read at each connect."""

    def __init__(self, username: str | None, path: str) -> None:
        self._username = username
        self._path = Path(path).expanduser()

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = self._path.read_text(encoding="utf-8").strip()
        return (password,) if self._username is None else (self._username, password)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()


def _auth_options(
    username: str | None, password: str | None, password_file: str | None
) -> dict[str, Any]:
    if password_file is None:
        return {"username": username, "password": password}
    return {"credential_provider": _PasswordFile(username, password_file)}


def _is_auth_error(error: Exception) -> bool:
    """Return whether Redis rejected the user or password, or requires one."""
    refusals = ("NOAUTH", "WRONGPASS", "HELLO must be called with the client already authenticated")
    return isinstance(error, AuthenticationError) or str(error).startswith(refusals)


def _authentication_advice(credentials: Credentials) -> str:
    """Return advice for an error of the user name or password; "" for other errors."""
    if credentials.password_file is not None:
        return f". The password is that of the file {credentials.password_file}"
    if credentials.password is None:
        return ". Redis asks for a password, and store.redis_password_file names none"
    return (
        ". The password is the one that the environment had when this process began: where it"
        " changes, name a file in store.redis_password_file"
    )


def _tls_options(credentials: Credentials) -> dict[str, Any]:
    for name in ("tls_ca_file", "tls_cert_file", "tls_key_file"):
        path = getattr(credentials, name)
        if path is not None and not Path(path).is_file():
            raise ConfigError(f"store.redis_{name}: {path!r} is no file on this node")
    return {
        "ssl_ca_certs": credentials.tls_ca_file,
        "ssl_certfile": credentials.tls_cert_file,
        "ssl_keyfile": credentials.tls_key_file,
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
    }
