"""Parallel clusters: each front has its own directories and ports, and leaves no files."""

import os
from pathlib import Path

from tests.harness.local_front import local_front

_SOCKET_PATH_CHARACTERS = 107
_NODE_ID = "f" * 56
_HAPROXY_ADDS = ".1234567.tmp"
"""Suffix that HAProxy adds to the path of its UNIX socket."""


def serve_environment() -> dict[str, str]:
    """Return the environment variables of Serve that are set now."""
    return {name: value for name, value in os.environ.items() if name.startswith("RAY_SERVE_")}


def test_two_test_runs_share_no_socket_path_and_no_port() -> None:
    """If two test runs shared a path, the HAProxy of the second would not start."""
    before = serve_environment()
    with local_front():
        one = serve_environment()
        with local_front({"RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "1"}):
            other = serve_environment()
        again = serve_environment()
    places = [name for name in one if name.endswith(("_PORT", "_LOC", "_PATH", "_BASE", "_FILE"))]
    # Serve skips ports in use, and both runs use the installed HAProxy.
    shared = ("DIRECT_INGRESS", "BINARY")
    own = [name for name in places if not any(word in name for word in shared)]

    assert 8 == len(own)
    assert all(one[name] != other[name] for name in own)
    assert "1" == other["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"]
    assert (one, before) == (again, serve_environment())
    assert not Path(one["RAY_SERVE_HAPROXY_SERVER_STATE_BASE"]).exists()


def test_socket_paths_are_short_enough() -> None:
    """Linux allows 107 characters in a socket path, and cuts or refuses longer ones."""
    with local_front():
        for name in ("SOCKET_PATH", "METRICS_SOCKET_PATH"):
            directory, file = os.path.split(os.environ[f"RAY_SERVE_HAPROXY_{name}"])
            assert len(f"{directory}/{_NODE_ID}/{file}{_HAPROXY_ADDS}") <= _SOCKET_PATH_CHARACTERS
