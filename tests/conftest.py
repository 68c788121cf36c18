"""Fixtures of all tests: no Ray cluster in unit tests, one cluster for the tests marked for it."""

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import uuid4

import pytest
import pytest_asyncio
from hypothesis import settings

if TYPE_CHECKING:
    from tests.harness.service import Serving

os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",  # read when Ray is imported
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # On a busy machine a process may be silent for some seconds.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
}

# The shared cluster uses Serve's own proxy, whatever `justitia env` has set in this shell.
for _name in ("RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_THROUGHPUT_OPTIMIZED"):
    os.environ.pop(_name, None)

# Cached bytecode saves each Serve and vLLM process 2 to 7 s of CPU time for its imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Hypothesis profiles `dev` and `ci` draw the same examples in each run; `ci` draws more.
settings.register_profile("ci", derandomize=True, database=None, deadline=None, max_examples=60)
settings.register_profile("dev", settings.get_profile("ci"), max_examples=20)
settings.register_profile(
    "night", settings.get_profile("ci"), derandomize=False, max_examples=600, print_blob=True
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
)

_ROOT = Path(__file__).parents[1]
_STARTS_CLUSTERS = ("ray", "vllm")


class UnmarkedClusterStart(BaseException):
    """A test without the mark `ray` tried to start a Ray cluster.

    Not an Exception, so that product code cannot catch it.
    """


def pytest_configure(config: pytest.Config) -> None:
    """Ignore warnings of third-party code at Serve's import and after vLLM's engines end.

    Serve's own use of pydantic warns. A dying engine leaves its zmq contexts to the garbage
    collector, which finds them during another test.
    """
    for message in (
        "ignore:Using extra keyword arguments on `Field`",
        "ignore:Unclosed (context|socket) <zmq:ResourceWarning",
    ):
        config.addinivalue_line("filterwarnings", message)


@pytest.fixture(autouse=True)
def _no_cluster_unless_marked(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make `ray.init` fail in unmarked tests, also when `.remote()` calls it implicitly."""
    if any(request.node.get_closest_marker(mark) for mark in _STARTS_CLUSTERS):
        return
    ray, serve = sys.modules.get("ray"), sys.modules.get("ray.serve")

    def refuse_start(*args: Any, **options: Any) -> NoReturn:
        raise UnmarkedClusterStart("mark the test `ray` or `vllm`, or do without a cluster")

    if ray is not None:
        monkeypatch.setattr(ray, "init", refuse_start)
    if serve is not None:
        monkeypatch.setattr(serve, "start", refuse_start)
        monkeypatch.setattr(serve, "run", refuse_start)


# Fixtures import Ray themselves, so that tests without a cluster start quickly.


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Running Ray cluster. It declares more CPUs than the machine has: Ray only reserves them.

    Its processes find this repository by their environment. Ray would otherwise put this process's
    directory before an application's own paths, such as the release under test.
    """
    import ray

    from tests.harness.ray_start import start_ray

    with chdir(tmp_path_factory.mktemp("cluster")):
        start_ray(
            address="local",
            num_cpus=16,
            include_dashboard=False,
            object_store_memory=200 * 2**20,
            namespace=f"tests-{uuid4().hex[:8]}",
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": str(_ROOT)}},
            _system_config={
                "prestart_worker_first_driver": False,
                "enable_worker_prestart": False,
                "metrics_report_interval_ms": 3_000,
            },
        )
    yield
    ray.shutdown()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def serving(
    cluster: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator["Serving"]:
    """Running Ray Serve; at its end no application of the tests may be deployed."""
    from ray import serve

    from tests.eventually import eventually
    from tests.harness.local_front import free_port
    from tests.harness.service import Serving, process_ids_in

    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serving = Serving(
        client=serve.context._get_global_client(),
        base_url=f"http://127.0.0.1:{port}",
        directory=tmp_path_factory.mktemp("serving"),
        namespace=f"tests-{uuid4().hex[:8]}",
    )
    yield serving
    serve.shutdown()
    for service in serving.services.values():
        service.end_detached()
    await eventually(
        lambda: not process_ids_in(serving.directory),
        "no Redis server or engine of ours is left",
        15,
    )
