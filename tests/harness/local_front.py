"""Serve's proxy for one of several clusters on a machine, with its own directories and ports."""

import os
import random
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from justitia_ray.config import IngressSection
from justitia_ray.serve.front import plan_front

_INGRESS_PORTS = 100
"""Number of HTTP ports per test cluster; Serve skips ports in use."""
_FIRST_INGRESS_PORT = 20_000
_RANGES = 110
"""Number of port ranges below 31,000; above, Linux assigns ports itself."""


@contextmanager
def local_front(extra: Mapping[str, str] | None = None) -> Iterator[None]:
    """Give clusters of a `with` block HAProxy if it is installed, otherwise Serve's own proxy.

    By default every HAProxy of a machine has the same directory and ports, so that a second cluster
    would not start.

    Args:
        extra: Variables on top.
    """
    settings = plan_front(IngressSection().max_outstanding).environment
    # A UNIX socket's path has at most 107 characters, of which Serve and HAProxy add 80.
    with (
        TemporaryDirectory(prefix="front-", dir="/tmp") as directory,
        environment(settings | _own_directories_and_ports(directory) | dict(extra or {})),
    ):
        yield


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the length of a `with` block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def free_port() -> int:
    """Return a free TCP port of the loopback address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _own_directories_and_ports(directory: str) -> dict[str, str]:
    first = _FIRST_INGRESS_PORT + _INGRESS_PORTS * random.randrange(_RANGES)
    return {
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{directory}/haproxy.cfg",
        "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{directory}/admin.sock",
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": f"{directory}/metrics.sock",
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": directory,
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": f"{directory}/server-state",
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(free_port()),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(first),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(first + _INGRESS_PORTS),
        # Stopping processes need not keep answering (default 30 s) for HAProxies on other nodes.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",
    }
