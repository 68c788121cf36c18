"""Cluster with Serve's own proxy that the tests of this folder share."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack

import httpx
import pytest
import pytest_asyncio

from tests.certificates import Authority
from tests.harness.front_cluster import FrontCluster, front_cluster

LIMIT_S = 3.0
"""Longest duration of a call in seconds, which the operator sets in `request_timeout_s`."""
_FAKE = {"iteration_s": 0.02, "kv_tokens": 100_000, "max_model_len": 16_384}
ARGS = {"engine": {"kind": "fake", "fake": _FAKE}}


@pytest.fixture(scope="package")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.in_folder(tmp_path_factory.mktemp("tls") / "ours")


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def cluster(authority: Authority) -> AsyncIterator[FrontCluster]:
    """Cluster with a TLS certificate, and with a time limit for calls."""
    file, key = authority.issue("front", "127.0.0.1")
    options = {
        "ssl_certfile": str(file),
        "ssl_keyfile": str(key),
        "request_timeout_s": LIMIT_S,
    }
    with ExitStack() as stack:
        starting = front_cluster({"RAY_SERVE_ENABLE_HA_PROXY": "0"}, ARGS, options)
        yield await asyncio.to_thread(stack.enter_context, starting)
        await asyncio.to_thread(stack.close)


@pytest.fixture
def caller(cluster: FrontCluster, authority: Authority) -> Callable[..., httpx.AsyncClient]:
    """Return a function that makes HTTP clients which trust one certificate authority only."""

    def make_client(trusted: Authority = authority, **headers: str) -> httpx.AsyncClient:
        context = ssl.create_default_context(cafile=str(trusted.file))
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.AsyncClient(base_url=cluster.url, timeout=60.0, verify=context, headers=named)

    return make_client
