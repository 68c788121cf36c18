"""`engine-ready`, the readiness probe of a pod of `engines`, asked beside real HTTP servers."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from justitia_ray.observability.metrics import EXPORTED_PREFIX, KV_CAPACITY_TOKENS
from tests.unit.k8s.manifests import K8S

SCRIPT = K8S / "image" / "engine-ready"
EXPORTED = EXPORTED_PREFIX + KV_CAPACITY_TOKENS.name


@contextmanager
def answering(status: int, path: str, body: bytes) -> Iterator[int]:
    """Run a server that answers one path like this, and yield its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == path else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.005})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def metrics_page(name: str) -> bytes:
    """Return what an exporter serves that has a gauge of this name among others."""
    registry = CollectorRegistry()
    Counter("ray_tasks", "Of Ray.", ["State"], registry=registry).labels("RUNNING").inc()
    Gauge(name, "KV memory.", ["replica"], registry=registry).labels("a").set(7360)
    return generate_latest(registry)


def asked(serve_port: int, metrics_port: int) -> tuple[int, str]:
    """Return how the probe ends, and what it says."""
    command = [str(SCRIPT), str(serve_port), str(metrics_port)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    return done.returncode, done.stderr


def outcome(health: int, page: bytes) -> tuple[int, str]:
    """Return how the probe ends beside a proxy and an exporter that answer so."""
    with (
        answering(health, "/-/healthz", b"success") as proxy,
        answering(200, "/metrics", page) as exporter,
    ):
        return asked(proxy, exporter)


def test_pod_with_an_engine_is_ready() -> None:
    """The metric is that of the table: a new name there would leave every pod unready."""
    assert (0, "") == outcome(200, metrics_page(EXPORTED))


def test_pod_whose_engine_loads_is_not_ready() -> None:
    """Serve's proxy answers for minutes before: the budget would let the last other engine go."""
    assert (1, "engine-ready: no engine has loaded\n") == outcome(200, metrics_page("ray_other"))


def test_metric_of_a_longer_name_is_another_one() -> None:
    """One that begins alike may come later, from another part."""
    page = metrics_page(f"{EXPORTED}_free")

    assert (1, "engine-ready: no engine has loaded\n") == outcome(200, page)


def test_pod_whose_proxy_is_draining_is_not_ready() -> None:
    """New calls would be refused there, whatever the engine does."""
    expected = (1, "engine-ready: Serve's proxy takes no calls\n")

    assert expected == outcome(503, metrics_page(EXPORTED))


@pytest.mark.parametrize("gone", ["proxy", "exporter"])
def test_pod_without_one_of_both_is_not_ready(gone: str) -> None:
    """As in the first seconds of a pod, when nobody listens."""
    with answering(200, "/-/healthz", b"success") as closed:
        pass
    with (
        answering(200, "/-/healthz", b"success") as proxy,
        answering(200, "/metrics", metrics_page(EXPORTED)) as exporter,
    ):
        ports = {"proxy": proxy, "exporter": exporter} | {gone: closed}
        status, _ = asked(ports["proxy"], ports["exporter"])

    assert 1 == status
