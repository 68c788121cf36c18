"""The readiness probe `engine-ready` of the `engines` pods, tested with real HTTP servers."""

import subprocess
from contextlib import AbstractContextManager

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from justitia_ray.observability.metrics import EXPORTED_PREFIX, KV_CAPACITY_TOKENS
from tests.unit.cli.noting_service import recording_service
from tests.unit.k8s.manifests import K8S

SCRIPT = K8S / "image" / "engine-ready"
EXPORTED = EXPORTED_PREFIX + KV_CAPACITY_TOKENS.name


def answer_path(status: int, path: str, body: bytes) -> AbstractContextManager[str]:
    """Run a server that answers one path with this status and body, and yield its URL."""
    return recording_service(lambda _, asked, __: (status if asked == path else 404, body))


def metrics_page(name: str) -> bytes:
    """Return a page of an exporter with a gauge of this name among others."""
    registry = CollectorRegistry()
    Counter("ray_tasks", "Of Ray.", ["State"], registry=registry).labels("RUNNING").inc()
    Gauge(name, "KV memory.", ["replica"], registry=registry).labels("a").set(7360)
    return generate_latest(registry)


def run_probe(serve: str, metrics: str) -> tuple[int, str]:
    """Return the exit status and error output of the probe for these two URLs."""
    command = [str(SCRIPT), *(url.rpartition(":")[2] for url in (serve, metrics))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    return done.returncode, done.stderr


_LOADING = "engine-ready: no engine has loaded\n"


@pytest.mark.parametrize(
    ("health", "metric", "expected"),
    [
        pytest.param(200, EXPORTED, (0, ""), id="an engine has loaded"),
        pytest.param(200, "ray_other", (1, _LOADING), id="Serve's proxy answers minutes before"),
        pytest.param(200, f"{EXPORTED}_free", (1, _LOADING), id="a longer name is another metric"),
        pytest.param(
            503, EXPORTED, (1, "engine-ready: Serve's proxy takes no calls\n"), id="it drains"
        ),
    ],
)
def test_pod_with_an_engine_and_a_proxy_is_ready(
    health: int, metric: str, expected: tuple[int, str]
) -> None:
    """The metric must have the name in the metrics table, or every pod would stay unready.

    A loading engine must not count: the budget would allow the last other engine to be evicted.
    """
    with (
        answer_path(health, "/-/healthz", b"success") as proxy,
        answer_path(200, "/metrics", metrics_page(metric)) as exporter,
    ):
        assert expected == run_probe(proxy, exporter)


@pytest.mark.parametrize("gone", ["proxy", "exporter"])
def test_pod_without_an_engine_or_a_proxy_is_not_ready(gone: str) -> None:
    with answer_path(200, "/-/healthz", b"success") as closed:
        pass
    with (
        answer_path(200, "/-/healthz", b"success") as proxy,
        answer_path(200, "/metrics", metrics_page(EXPORTED)) as exporter,
    ):
        urls = {"proxy": proxy, "exporter": exporter} | {gone: closed}
        status, _ = run_probe(urls["proxy"], urls["exporter"])

    assert 1 == status
