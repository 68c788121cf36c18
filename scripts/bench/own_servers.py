"""Servers that benchmarks start beside their cluster: vLLM, routers, an earlier release."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil  # type: ignore[import-untyped]
import yaml

from justitia_ray.config import AppConfig
from justitia_ray.errors import JustitiaError
from justitia_ray.units import Seconds
from scripts.bench.tools import tool_path
from tests.harness.local_front import free_port

_UP_WITHIN_S: Seconds = 300.0
_ENDS_WITHIN_S: Seconds = 20.0
_POLL_S: Seconds = 0.2


@dataclass(frozen=True, slots=True)
class OwnServer:
    """Port of a running server, and the role of each of its processes by process id."""

    port: int
    roles: Mapping[int, str]


@contextmanager
def vllm_server(config: AppConfig, engines: int) -> Iterator[OwnServer]:
    """Run vLLM's own server: one HTTP process and one engine.

    Raises:
        JustitiaError: If it does not come up.
    """
    if engines != 1:
        raise JustitiaError(f"vLLM's own server has one engine, not {engines}")
    with _serve_module("scripts.bench.vllm_server", config) as (port, pid):
        yield OwnServer(port, {pid: "replica"})


@contextmanager
def litellm_proxy(config: AppConfig, engines: int) -> Iterator[OwnServer]:
    """Run LiteLLM's proxy with one worker in front of `engines` servers of the fake engine.

    Raises:
        JustitiaError: If it does not come up, e.g. because the extra `rivals` is not installed.
    """
    name = config.model.name
    with ExitStack() as stack:
        servers = [
            stack.enter_context(_serve_module("scripts.bench.floor_app", config))
            for _ in range(engines)
        ]
        models = [
            {
                "model_name": name,
                "litellm_params": {
                    "model": f"text-completion-openai/{name}",
                    "api_base": f"http://127.0.0.1:{port}/v1",
                    "api_key": "none",
                },
            }
            for port, _ in servers
        ]
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="justitia-litellm-")))
        file = directory / "config.yaml"
        # The proxy is reachable from this machine only, and calls without a key cost least.
        general = {"dangerously_permit_weak_or_unset_master_key": True}
        values = {"model_list": models, "general_settings": general}
        file.write_text(yaml.safe_dump(values), encoding="utf-8")
        port = free_port()
        command = [sys.executable, "-m", "litellm.proxy.proxy_cli", "--config", str(file)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
        # The proxy would otherwise fetch prices from the network.
        environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
        pid = stack.enter_context(
            _running_process(command, port, "/health/liveliness", environment)
        )
        yield OwnServer(port, {pid: "proxy"} | {engine: "replica" for _, engine in servers})


@contextmanager
def vllm_router(policy: str, ports: Sequence[int]) -> Iterator[OwnServer]:
    """Run vLLM's router in front of the servers on these ports.

    Args:
        policy: One of the router's: `cache_aware`, `consistent_hash`.
        ports: Of the servers.

    Raises:
        JustitiaError: If it does not come up.
    """
    port = free_port()
    command = [str(tool_path("vllm-router")), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--policy", policy, "--prometheus-port", str(free_port()), "--log-level", "error"]
    command += ["--worker-urls", *(f"http://127.0.0.1:{server}" for server in ports)]
    with _running_process(command, port, "/readiness", {}) as pid:
        yield OwnServer(port, {pid: "router"})


# The driver is passed as text, because Ray puts the directory of a driver file first.
_CLUSTER = """
import json, signal, sys
import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

values = json.loads(sys.argv[1])
ends = {signal.SIGTERM}
ray.init(address="local", num_cpus=64, include_dashboard=False, log_to_driver=False)
signal.pthread_sigmask(signal.SIG_BLOCK, ends)
serve.start(proxy_location="HeadOnly", http_options=values["http_options"])
_get_global_client().deploy_apps(ServeDeploySchema.model_validate(values), _blocking=True)
signal.sigwait(ends)
ray.shutdown()
"""


@contextmanager
def release_cluster(code: Path, application: Mapping[str, Any]) -> Iterator[OwnServer]:
    """Run an application with the code of another release, on a Ray cluster with Serve's proxy.

    Args:
        code: A worktree of the release.
        application: The application, as a Serve configuration file has it.

    Raises:
        JustitiaError: If it does not come up.
    """
    port = free_port()
    values = {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "127.0.0.1", "port": port},
        "applications": [
            {**application, "runtime_env": {"env_vars": {"PYTHONPATH": str(code)}}},
        ],
    }
    command = [sys.executable, "-P", "-c", _CLUSTER, json.dumps(values)]
    path = f"{application['route_prefix']}/v1/models"
    with (
        TemporaryDirectory(prefix="justitia-release-") as directory,
        _running_process(command, port, path, {"PYTHONPATH": str(code)}, directory) as pid,
    ):
        yield OwnServer(port, {pid: "ray"})


@contextmanager
def _serve_module(module: str, config: AppConfig) -> Iterator[tuple[int, int]]:
    """Run a module of this project that serves a configuration; yield its port and process id."""
    port = free_port()
    values = json.dumps(config.model_dump(mode="json"))
    command = [sys.executable, "-m", module, "--port", str(port), "--config", values]
    with _running_process(command, port, "/health", {}) as pid:
        yield port, pid


@contextmanager
def _running_process(
    command: list[str],
    port: int,
    path: str,
    environment: Mapping[str, str],
    cwd: str | None = None,
) -> Iterator[int]:
    """Run a server inside the block; yield its process id once it answers at `path`.

    All processes it has started end with it, even if it never answers.
    """
    with TemporaryDirectory(prefix="justitia-server-") as directory:
        said = Path(directory) / "output"
        with said.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                cwd=cwd,
            )
        try:
            _wait_until_up(command, process, f"http://127.0.0.1:{port}{path}", said)
            yield process.pid
        finally:
            started = _descendant_ids(process.pid)
            process.terminate()
            try:
                process.wait(_ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for left in started:  # A detached scheduler and its Redis outlive the cluster.
                with suppress(psutil.NoSuchProcess):
                    left.kill()


def _descendant_ids(pid: int) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


def _wait_until_up(
    command: list[str], process: "subprocess.Popen[Any]", url: str, said: Path
) -> None:
    deadline = time.monotonic() + _UP_WITHIN_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5.0):
                return
        except (urllib.error.URLError, OSError):
            if process.poll() is None and time.monotonic() < deadline:
                time.sleep(_POLL_S)
                continue
        last = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:]
        raise JustitiaError(f"{' '.join(command[:3])} did not come up: {' '.join(last)}")
