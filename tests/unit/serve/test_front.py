"""Environment of the HTTP front: connection limits, open files, and Serve's proxy as fallback."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.serve import front
from justitia_ray.serve.front import (
    fitting_connections,
    plan_front,
    raise_descriptor_limit,
    read_front,
    wanted_descriptors,
)

HAPROXY = {"RAY_SERVE_HAPROXY_BINARY_PATH": "/bin/sh"}
"""Environment that names an executable file as HAProxy, which is not run."""


@pytest.fixture(autouse=True)
def _linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")


@pytest.mark.parametrize("descriptors", [0, 300, 1_024, 20_000, 20_001, 1_048_576])
def test_maximum_number_of_connections_fits_the_open_files_limit(descriptors: int) -> None:
    """HAProxy exits at its start if its limit needs more open files than allowed."""
    fitting = fitting_connections(descriptors)

    assert wanted_descriptors(fitting) <= max(descriptors, wanted_descriptors(0))
    assert wanted_descriptors(fitting + 1) > descriptors


def test_haproxy_needs_two_and_a_half_open_files_per_connection() -> None:
    """Measured: 7,980 connections start with 20,000 open files, 7,986 need 20,002."""
    assert 7_800 < fitting_connections(20_000) < 7_980


@pytest.mark.parametrize(
    ("callers", "descriptors", "connections", "notes"),
    [
        (20_000, 1_048_576, "22000", 0),
        (100, 1_048_576, "356", 0),
        (20_000, 20_000, "7897", 1),
    ],
    ids=["callers and a tenth", "callers and some", "what fits"],
)
def test_connection_limit_is_the_number_of_callers_or_the_open_files_limit(
    callers: int, descriptors: int, connections: str, notes: int
) -> None:
    """Every waiting caller has a connection.

    A limit that does not fit is logged with a remedy.
    """
    plan = plan_front(callers, descriptors, HAPROXY)

    assert connections == plan.environment["RAY_SERVE_HAPROXY_MAXCONN"]
    assert "1" == plan.environment["RAY_SERVE_ENABLE_HA_PROXY"]
    assert notes == len(plan.notes)
    assert all("Raise it to 55,256" in note for note in plan.notes)


def test_serve_throughput_settings_are_omitted_without_haproxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The settings alone add no speed, and Serve exits if HAProxy is missing."""
    monkeypatch.setattr(front, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    plan = plan_front(1_000, 20_000, {})
    too_few = plan_front(1_000, 400, HAPROXY)
    monkeypatch.setattr(sys, "platform", "darwin")
    elsewhere = plan_front(1_000, 20_000, HAPROXY)

    for found in (plan, too_few, elsewhere):
        assert ["RAY_SERVE_METRICS_EXPORT_INTERVAL_MS"] == list(found.environment)
    assert "no HAProxy here" in plan.notes[0]
    assert "`ulimit -Hn` is 400" in too_few.notes[0]
    assert "this is darwin" in elsewhere.notes[0]


def test_serve_with_tls_runs_without_haproxy() -> None:
    """The application refuses TLS options behind HAProxy."""
    nowhere = {"RAY_SERVE_HAPROXY_BINARY_PATH": "/nowhere"}
    for environment in (HAPROXY, nowhere):
        plan = plan_front(1_000, 20_000, environment, tls=True)

        assert ["RAY_SERVE_METRICS_EXPORT_INTERVAL_MS"] == list(plan.environment)
        (note,) = plan.notes
        assert note.startswith("Serve's own proxy is the front: http_options.ssl_certfile asks")


def test_error_names_a_haproxy_binary_that_cannot_run(tmp_path: Path) -> None:
    """Ray would report the error only at Serve's start, in an actor's log."""
    with pytest.raises(ConfigError, match=r"RAY_SERVE_HAPROXY_BINARY_PATH is '/.*none': the path"):
        plan_front(1, 20_000, {"RAY_SERVE_HAPROXY_BINARY_PATH": str(tmp_path / "none")})


def test_haproxy_is_started_without_splicing() -> None:
    """With splicing, HAProxy does not notice that a caller has disconnected."""
    plan = plan_front(1, 20_000, HAPROXY).environment
    again = plan_front(1, 20_000, plan).environment
    other = plan_front(1, 20_000, plan | {"RAY_SERVE_HAPROXY_BINARY_PATH": "/bin/cat"}).environment

    assert str(front.WRAPPER) == plan["RAY_SERVE_HAPROXY_BINARY_PATH"]
    assert "/bin/sh" == plan["JUSTITIA_HAPROXY_BINARY"]
    assert plan == again
    assert "/bin/cat" == other["JUSTITIA_HAPROXY_BINARY"]
    assert not read_front(plan).splices
    assert read_front(HAPROXY | {"RAY_SERVE_ENABLE_HA_PROXY": "1"}).splices
    assert not read_front({}).splices


def test_haproxy_wrapper_that_cannot_be_executed_is_omitted_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive may lose the file mode, and Ray would fail to start the wrapper."""
    monkeypatch.setattr(front, "WRAPPER", tmp_path / "haproxy_without_splicing")
    front.WRAPPER.write_text("#!/bin/sh")
    plan = plan_front(1, 20_000, HAPROXY)

    assert "RAY_SERVE_HAPROXY_BINARY_PATH" not in plan.environment
    assert "1" == plan.environment["RAY_SERVE_ENABLE_HA_PROXY"]
    assert "HAProxy runs with splicing" in plan.notes[-1]


@pytest.mark.parametrize(
    ("features", "arguments"),
    [("+LINUX_SPLICE", "-dS -f it.cfg"), ("-LINUX_SPLICE", "-f it.cfg")],
    ids=["splices", "cannot"],
)
def test_haproxy_wrapper_passes_its_arguments_on(
    tmp_path: Path, features: str, arguments: str
) -> None:
    binary = tmp_path / "haproxy"
    binary.write_text(f'#!/bin/sh\n[ "$1" = -vv ] && echo "Features: {features}" || echo "$@"\n')
    binary.chmod(0o755)
    said = subprocess.run(
        [front.WRAPPER, "-f", "it.cfg"],
        env={"PATH": os.environ["PATH"], "JUSTITIA_HAPROXY_BINARY": str(binary)},
        capture_output=True,
        check=True,
        text=True,
    )

    assert arguments == said.stdout.strip()


def test_environment_of_the_process_determines_serves_http_proxy() -> None:
    serve = read_front(HAPROXY)
    default = read_front(HAPROXY | {"RAY_SERVE_ENABLE_HA_PROXY": "1"})
    given = read_front(plan_front(20_000, 20_000, HAPROXY).environment | HAPROXY)

    assert ("serve", None) == (serve.kind, serve.max_connections)
    assert ("haproxy", 4_096) == (default.kind, default.max_connections)
    assert ("haproxy", 7_897, 19_999) == (
        given.kind,
        given.max_connections,
        given.wanted_descriptors,
    )
    assert serve.haproxy_can_run
    assert not read_front({"RAY_SERVE_HAPROXY_BINARY_PATH": "/nowhere"}).haproxy_can_run


def test_process_raises_its_limit_of_open_files_to_the_allowed_maximum() -> None:
    """`ray start` leaves an ingress the shell's limit of 1,024, and each caller uses one file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
    try:
        raise_descriptor_limit()

        assert (hard, hard) == resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
