"""The service on scripted engines in a process apart, behind HAProxy or Serve's own proxy.

As a program it serves until its input ends; it prints its port and that of Ray's metrics, or the
reason why it does not start.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from tests.e2e.harnesses.model import CONTEXT, STRICT
from tests.e2e.harnesses.pages import served_model
from tests.e2e.harnesses.script import SCRIPTS

_ROOT = Path(__file__).parents[3]
_CPUS = 16
_ENDS_WITHIN_S = 120.0
_OF_RAY = {"RAY_worker_niceness": "0", "RAY_metrics_report_interval_ms": "1000"}
SEATS = 6
"""Concurrent inferences of an engine: few enough for a test to occupy all of them."""
KEEPALIVE_S = 1.0
SPENT = "spent"
"""Name of a tenant whose quota is too small for any call."""


@dataclass(frozen=True, slots=True)
class ScriptedService:
    url: str
    exporter: str
    """URL of Ray's metrics, which include vLLM's."""
    pid: int

    def engine_process_ids(self, model: str) -> list[int]:
        children = psutil.Process(self.pid).children(recursive=True)
        return [
            child.pid
            for replica in children
            if f"Replica-{model}" in " ".join(replica.cmdline())
            for child in replica.children()
            if "EngineCore" in " ".join(child.cmdline())
        ]


def serve_config(
    model: Path, scripts: Path, keys: Path, data_dir: str, engines: Mapping[str, int]
) -> dict[str, Any]:
    """Return the Serve configuration of the scripted models.

    Args:
        model: Directory of the scripted model.
        scripts: File with what it says.
        keys: File of API keys.
        data_dir: Directory for the application's state.
        engines: Replicas of each model, by its name: that of its chat template.
    """
    return {
        "applications": [
            {
                "name": "harnesses",
                "route_prefix": "/",
                "import_path": "tests.e2e.harnesses.app:build",
                "args": {
                    "models": [_model_config(name, model, scripts) for name in engines],
                    "store": {"data_dir": data_dir},
                    "access": {"keys_file": str(keys)},
                    "ingress": {"keepalive_s": KEEPALIVE_S},
                    # Engines, Ray and clients share two cores.
                    "scheduler": {"replica_timeout_s": 30, "lease_timeout_s": 60},
                },
                "deployments": [
                    {
                        "name": "Ingress",
                        "num_replicas": 1,
                        "ray_actor_options": {"num_cpus": 0.2},
                        "user_config": {
                            "policy": "justitia",
                            "tenants": {
                                SPENT: {"quotas": [{"unit": "tokens", "limit": 10, "per": "month"}]}
                            },
                        },
                    },
                    *(
                        {
                            "name": f"Replica-{name}",
                            "num_replicas": number,
                            "ray_actor_options": {"num_cpus": 0.5},
                        }
                        for name, number in engines.items()
                    ),
                ],
            }
        ]
    }


def _model_config(name: str, model: Path, scripts: Path) -> dict[str, Any]:
    told = served_model(name)
    return {
        **told,
        "path": str(model),
        "aliases": told["aliases"] if name == STRICT else [],
        "engine": {
            "kind": "vllm",
            "vllm_args": {
                **told["engine"]["vllm_args"],
                "chat_template": str(model / f"{name}.jinja"),
                "logits_processors": "tests.e2e.harnesses.processor:ScriptedWords",
                "dtype": "float32",
                "enforce_eager": True,
                "distributed_executor_backend": (
                    "vllm.v1.executor.uniproc_executor.UniProcExecutor"
                ),
                "block_size": 32,
                "num_gpu_blocks_override": 8 * CONTEXT // 32,
                "max_num_seqs": SEATS,
            },
            "env": {
                SCRIPTS: str(scripts),
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_LOGGING_LEVEL": "WARNING",
            },
            "start_timeout_s": 400,
        },
    }


@contextmanager
def scripted_service(
    model: Path, scripts: Path, keys: Path, engines: Mapping[str, int], *, haproxy: bool
) -> Iterator[ScriptedService]:
    """Run the service with scripted models for the length of a `with` block.

    Raises:
        AssertionError: If the service does not come up; the message is Serve's.
    """
    words = [json.dumps([str(model), str(scripts), str(keys), dict(engines), haproxy])]
    with subprocess.Popen(
        [sys.executable, "-m", __name__, *words],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT), **_OF_RAY},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            said = json.loads(process.stdout.readline() or '"the service has ended"')
            assert isinstance(said, list), said
            port, exporter = said
            yield ScriptedService(
                f"http://127.0.0.1:{port}", f"http://127.0.0.1:{exporter}/metrics", process.pid
            )
        finally:
            process.stdin.close()
            process.wait(_ENDS_WITHIN_S)


def _serve_until_input_ends(
    model: str, scripts: str, keys: str, engines: dict[str, int], haproxy: bool
) -> None:
    import ray

    from justitia_ray.errors import JustitiaError
    from tests.harness.local_cluster import LocalCluster

    # Answers go to the original stdout; Ray's output goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if not haproxy:
        os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = "0"
    cluster = LocalCluster(_CPUS, haproxy=haproxy)
    cluster.values = serve_config(Path(model), Path(scripts), Path(keys), cluster.data_dir, engines)
    try:
        with cluster:
            (node,) = ray.nodes()
            told = [cluster.port, node["MetricsExportPort"]]
            print(json.dumps(told), file=answers, flush=True)
            sys.stdin.read()
    except JustitiaError as error:
        print(json.dumps(str(error)), file=answers, flush=True)


if __name__ == "__main__":
    _serve_until_input_ends(*json.loads(sys.argv[1]))
