"""One Ray cluster for all tests of this folder that carry the mark, and one application on it."""

import os
import socket
import warnings
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

with warnings.catch_warnings():
    # This file is imported before the filter of the one above it is in force.
    warnings.filterwarnings("ignore", "Using extra keyword arguments on `Field`")
    import ray
    from ray import serve

from justitia_ray.serve.scheduler_actor import end_scheduler
from tests.eventually import eventually
from tests.integration.service import Service, Serving, redis_processes

# On a busy machine nothing is dead yet that has been silent for some seconds.
os.environ |= {
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
}


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A Ray cluster of our own, with CPUs to reserve rather than to use."""
    ray.init(
        address="local",
        num_cpus=16,
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        namespace=f"tests-{uuid4().hex[:8]}",
        log_to_driver=False,
        _system_config={"prestart_worker_first_driver": False, "enable_worker_prestart": False},
    )
    yield
    ray.shutdown()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def serving(
    cluster: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    """Serve, empty; at the end nothing of what it was given may be left."""
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serving = Serving(
        client=serve.context._get_global_client(),
        base_url=f"http://127.0.0.1:{port}",
        directory=tmp_path_factory.mktemp("serving"),
        namespace=f"tests-{uuid4().hex[:8]}",
    )
    yield serving
    configs = [service.config for service in serving.services.values()]
    serve.shutdown()
    for config in configs:
        end_scheduler(config)
    await eventually(
        lambda: not redis_processes(serving.directory), "no Redis server of ours is left", 15.0
    )


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def service(serving: Serving) -> Service:
    """The application that all tests share; each leaves it idle, and kills nothing in it."""
    service = serving.service("shared", ingress={"keepalive_s": 0.2})
    await service.deploy()
    return service


@pytest_asyncio.fixture(loop_scope="session")
async def http(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of the shared application."""
    async with service.http() as client:
        yield client
