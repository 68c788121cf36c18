"""Cluster with its own proxy in a process apart from the cluster that the tests share.

As a program it serves until its input ends: it prints its port, and after each number of ingress
processes that it reads, that they run. If an application fails to start it prints the reason and
ends.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil  # type: ignore[import-untyped]

from justitia_ray.errors import JustitiaError

_ROOT = Path(__file__).parents[2]
_FILE = _ROOT / "deployments" / "local-fake.yaml"
_CPUS = 16
_ENDS_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class FrontCluster:
    """Running cluster with one application, `fake-7b`, and one engine."""

    url: str
    _process: "subprocess.Popen[str]"

    def scale(self, ingresses: int) -> None:
        """Set the number of ingress processes, and wait until they serve."""
        _write_message(self._process.stdin, ingresses)
        _read_number(self._process.stdout)

    def process_ids(self) -> list[int]:
        return [child.pid for child in psutil.Process(self._process.pid).children(recursive=True)]

    def ingress_ports(self) -> list[int]:
        """Return the ports on which the ingress processes listen, for HTTP or for Ray."""
        ports = []
        for child in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "Ingress" in " ".join(child.cmdline()):
                    found = child.net_connections(kind="tcp")
                    ports += [one.laddr.port for one in found if one.status == psutil.CONN_LISTEN]
        return ports

    def haproxy_process_ids(self) -> set[int]:
        """Return the HAProxy process ids; old processes may still finish their connections."""
        return {pid for pid in self.process_ids() if _is_haproxy(pid)}


@contextmanager
def front_cluster(
    environment: Mapping[str, str],
    args: Mapping[str, Any],
    http_options: Mapping[str, Any] | None = None,
) -> Iterator[FrontCluster]:
    """Run a cluster for the length of a `with` block, by default behind HAProxy.

    Args:
        environment: On top of that of a local front.
        args: Sections of the application's arguments, in place of the file's.
        http_options: Of Serve, beside host and port.

    Raises:
        JustitiaError: If the application does not come up; the message is Serve's.
    """
    http_options = dict(http_options or {})
    words = [json.dumps(values) for values in (environment, args, http_options)]
    command = [sys.executable, "-m", __name__, *words]
    scheme = "https" if "ssl_certfile" in http_options else "http"
    with subprocess.Popen(
        command,
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield FrontCluster(f"{scheme}://127.0.0.1:{_read_number(process.stdout)}", process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(_ENDS_WITHIN_S)


def _is_haproxy(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return bool(process.name() == "haproxy" and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _write_message(pipe: IO[str] | None, word: object) -> None:
    assert pipe is not None
    print(json.dumps(word), file=pipe, flush=True)


def _read_number(pipe: IO[str] | None) -> int:
    assert pipe is not None
    line = pipe.readline()
    assert line, "the cluster has ended"
    said = json.loads(line)
    if isinstance(said, str):
        raise JustitiaError(said)
    return int(said)


def serve_until_input_ends(
    environment: Mapping[str, str], args: Mapping[str, Any], http_options: Mapping[str, Any]
) -> None:
    from tests.harness.local_cluster import LocalCluster, read_serve_config
    from tests.harness.local_front import local_front

    # Ray's own output must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    cluster = LocalCluster(_CPUS, haproxy=False, http_options=http_options)
    cluster.values = read_serve_config(_FILE)
    application = cluster.values["applications"][0]
    application["args"] |= {**args, "store": {"data_dir": cluster.data_dir}}
    deployments = {d["name"]: d for d in application["deployments"]}
    deployments["Replica"]["num_replicas"] = 1
    try:
        with local_front(environment), cluster:
            _write_message(answers, cluster.port)
            for line in sys.stdin:
                deployments["Ingress"]["num_replicas"] = int(line)
                cluster.deploy()
                _write_message(answers, int(line))
    except JustitiaError as error:
        _write_message(answers, str(error))


if __name__ == "__main__":
    serve_until_input_ends(*map(json.loads, sys.argv[1:]))
