"""`engine-ready`, the readiness probe of a pod of `engines`, asked beside real HTTP servers."""

import subprocess
from contextlib import AbstractContextManager

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from justitia_ray.observability.metrics import EXPORTED_PREFIX, KV_CAPACITY_TOKENS
from tests.unit.cli.noting_service import noting_service
from tests.unit.k8s.manifests import K8S

SCRIPT = K8S / "image" / "engine-ready"
EXPORTED = EXPORTED_PREFIX + KV_CAPACITY_TOKENS.name


def answering(status: int, path: str, body: bytes) -> AbstractContextManager[str]:
    """Run a server that answers one path like this, and yield its URL."""
    return noting_service(lambda _, asked, __: (status if asked == path else 404, body))


def metrics_page(name: str) -> bytes:
    """Return what an exporter serves that has a gauge of this name among others."""
    registry = CollectorRegistry()
    Counter("ray_tasks", "Of Ray.", ["State"], registry=registry).labels("RUNNING").inc()
    Gauge(name, "KV memory.", ["replica"], registry=registry).labels("a").set(7360)
    return generate_latest(registry)


def asked(serve: str, metrics: str) -> tuple[int, str]:
    """Return how the probe of these two URLs ends, and what it says."""
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
def test_pod_is_ready_with_an_engine_and_a_proxy(
    health: int, metric: str, expected: tuple[int, str]
) -> None:
    """The metric is that of the table: a new name there would leave every pod unready.

    One that loads must not count: the budget would let the last other engine go.
    """
    with (
        answering(health, "/-/healthz", b"success") as proxy,
        answering(200, "/metrics", metrics_page(metric)) as exporter,
    ):
        assert expected == asked(proxy, exporter)


@pytest.mark.parametrize("gone", ["proxy", "exporter"])
def test_pod_without_one_of_both_is_not_ready(gone: str) -> None:
    """As in the first seconds of a pod, when nobody listens."""
    with answering(200, "/-/healthz", b"success") as closed:
        pass
    with (
        answering(200, "/-/healthz", b"success") as proxy,
        answering(200, "/metrics", metrics_page(EXPORTED)) as exporter,
    ):
        urls = {"proxy": proxy, "exporter": exporter} | {gone: closed}
        status, _ = asked(urls["proxy"], urls["exporter"])

    assert 1 == status
