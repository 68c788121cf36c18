"""Arms of `scripts/bench_serve`: variants of the service, competitors and the lower bound.

Arms that are Serve applications share one Ray cluster; the others are separate processes. All share
the machine; measurements alternate between them, and only one is called at a time.
"""

import copy
import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from justitia_ray.config import AppConfig
from justitia_ray.errors import JustitiaError
from justitia_ray.serve.engines.vllm_args import VllmValue
from justitia_ray.units import Seconds
from scripts.bench.load import Target
from scripts.bench.machine import Role, cpu_by_role
from scripts.bench.own_servers import OwnServer, litellm_proxy, release_cluster, vllm_server
from tests.harness.key_ring import KeyRing
from tests.harness.local_cluster import LocalCluster, read_serve_config
from tests.harness.otlp_receiver import otlp_receiver
from tests.harness.ray_code import repository_environment
from tests.harness.token_issuer import running_issuer

_DECLARED_CPUS = 64
"""Number of CPUs declared to Ray for placement, more than the machine has."""
_AMPLE = 10**15
"""Quota limit so high that no benchmark reaches it."""
_SERVICE = "justitia_ray.serve.app:build"


@dataclass(frozen=True, slots=True)
class Arm:
    """Variant of the service, or a replacement for it, that receives calls."""

    name: str
    import_path: str | None = _SERVICE
    """Import path of a Serve application's builder; None if `server` runs the arm."""
    engines: str = "Replica"
    """Name of the Serve deployment that runs the engines."""
    server: Callable[[AppConfig, int], AbstractContextManager[OwnServer]] | None = None
    chunk_interval_s: Seconds | None = None
    """Setting `replica.chunk_interval_s` of the arm; None keeps the Serve file's."""
    cache_fill_s: Seconds | None = None
    """Setting `replica.cache_fill_s` of the arm; None keeps the Serve file's."""
    iteration_s: Seconds | None = None
    """Iteration time of the fake engine in seconds; None keeps the file's setting."""
    metrics: bool = True
    vllm_args: tuple[tuple[str, VllmValue], ...] = ()
    """Additional engine options of vLLM."""
    engine_metrics: bool | None = None
    """Whether vLLM's own metrics are exported; None keeps the file's setting."""
    tracing_ratio: float | None = None
    """Share of traced applications, sent to a local receiver; None if tracing is off."""
    credential: Literal["key", "token"] | None = None
    """Kind of credential sent with calls: API key or JSON Web Token; None if access is open."""
    rules: tuple[str, ...] = ()
    """Recognition rules of applications; they replace those of the Serve file."""
    policy_options: tuple[tuple[str, float], ...] = ()
    """Additional options of the scheduling policy."""
    holds_contexts: bool = False
    """Setting `engine.hold_contexts` of the arm."""
    host_kv_gib: float | None = None
    """Setting `engine.host_kv_gib` of the arm."""
    quotas: tuple[str, ...] = ()
    """Quota units (such as tokens) that are counted for every tenant, without ever refusing a call.
    """
    code: Path | None = None
    """Directory of another release of the project, which runs on its own cluster."""


JUSTITIA = Arm("justitia")
DIRECT = Arm("direct", "scripts.bench.direct_app:build")
"""Arm without the queue: only Ray Serve's own router."""
FLOOR = Arm("floor", "scripts.bench.floor_app:build")
FASTAPI = Arm("fastapi", "scripts.bench.fastapi_app:build")
RAY_LLM = Arm("ray-llm", "scripts.bench.ray_llm_app:build", "FakeLLMServer:Replica")
LITELLM = Arm("litellm", None, server=litellm_proxy)
VLLM = Arm("vllm", None, server=vllm_server)


def release_arm(code: Path) -> Arm:
    """Return an arm that runs another release, with that release's proxy.

    Args:
        code: A worktree of the release. Its configuration has to allow what this one's files say.

    Raises:
        JustitiaError: If it holds no release.
    """
    if not (code / "justitia_ray").is_dir():
        raise JustitiaError(f"--release {code}: there is no justitia_ray")
    return Arm("release", code=code.absolute())


def arm_application(
    application: Mapping[str, Any],
    arm: Arm,
    replicas: int,
    data_dir: str,
    fake: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the Serve configuration of an arm.

    Args:
        application: The application that the arm is a variant of, from a Serve configuration file.
        arm: The variant.
        replicas: Engines of the arm.
        data_dir: Where the arm stores its state.
        fake: Options of the fake engine, in place of the file's.
    """
    values: dict[str, Any] = copy.deepcopy(dict(application))
    values |= {
        "name": arm.name,
        "route_prefix": f"/{arm.name}",
        "import_path": arm.import_path,
        "runtime_env": repository_environment(),
        "args": arm_args(application["args"], arm, fake),
    }
    values["args"] |= {"name": arm.name, "store": {"data_dir": data_dir}}
    if arm.import_path != _SERVICE:
        values["deployments"] = [{"name": arm.engines, "ray_actor_options": {"num_cpus": 0.2}}]
    for deployment in values["deployments"]:
        if deployment["name"] == arm.engines:
            deployment["num_replicas"] = replicas
        if deployment["name"] == "Ingress":
            settings = dict(deployment.get("user_config") or {})
            if arm.quotas:
                quotas = [{"unit": unit, "limit": _AMPLE, "per": "day"} for unit in arm.quotas]
                settings["tenants"] = {"*": {"quotas": quotas}}
            if arm.policy_options:
                options = settings.get("policy_options", {}) | dict(arm.policy_options)
                settings["policy_options"] = options
            if settings:
                deployment["user_config"] = settings
    return values


def arm_args(
    args: Mapping[str, Any], arm: Arm, fake: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the application arguments of an arm; `fake` replaces options of the fake engine."""
    changed: dict[str, Any] = copy.deepcopy(dict(args)) | {"metrics": {"enabled": arm.metrics}}
    if arm.chunk_interval_s is not None:
        changed.setdefault("replica", {})["chunk_interval_s"] = arm.chunk_interval_s
    if arm.cache_fill_s is not None:
        changed.setdefault("replica", {})["cache_fill_s"] = arm.cache_fill_s
    if arm.engine_metrics is not None:
        changed["engine"]["metrics"] = arm.engine_metrics
    if arm.vllm_args:
        given = changed["engine"].get("vllm_args", {})
        changed["engine"]["vllm_args"] = {**given, **dict(arm.vllm_args)}
    if arm.holds_contexts:
        changed["engine"]["hold_contexts"] = True
    if arm.host_kv_gib is not None:
        changed["engine"]["host_kv_gib"] = arm.host_kv_gib
    if arm.rules:
        changed["recognition"] = {"rules": list(arm.rules)}
    own = dict(fake or {})
    if arm.iteration_s is not None:
        own["iteration_s"] = arm.iteration_s
    if own:
        changed["engine"]["fake"] = changed["engine"].get("fake", {}) | own
    return changed


@contextmanager
def guarded(
    applications: Iterable[dict[str, Any]], arms: Iterable[Arm], directory: Path
) -> Iterator[dict[str, str]]:
    """Set up credentials and tracing for the arms; yield each arm's credential by name.

    Args:
        applications: The arms' applications, whose arguments are changed.
        arms: In the same order.
        directory: For the files of keys and certificates.
    """
    credentials = {}
    with ExitStack() as stack:
        for arm, application in zip(arms, applications, strict=True):
            if arm.credential == "key":
                keys = KeyRing(directory / f"{arm.name}-keys.yaml")
                keys.add("caller", "team", "infer", "own", "operate")
                keys.write()
                application["args"]["access"] = {"keys_file": str(keys.file)}
                credentials[arm.name] = keys.secrets["caller"]
            elif arm.credential == "token":
                issuer = stack.enter_context(running_issuer(directory))
                scope = "justitia.infer justitia.own justitia.operate"
                credentials[arm.name] = issuer.token(tenant="team", scope=scope)
                section = {"audience": "justitia", "jwks_ca_file": str(issuer.ca_file)}
                application["args"]["access"] = {"jwt": [{"issuer": issuer.url, **section}]}
            if arm.tracing_ratio is not None:
                application["args"]["tracing"] = {
                    "endpoint": stack.enter_context(otlp_receiver()).url,
                    "sample_ratio": arm.tracing_ratio,
                }
        yield credentials


def scheduler_roles(
    port: int, arms: Iterable[Arm], credentials: Mapping[str, str] | None = None
) -> dict[int, Role]:
    """Return (arm, role) of each scheduler actor by process id; its process title omits the arm."""
    roles = {}
    for arm in arms:
        if arm.import_path == _SERVICE:
            url = f"http://127.0.0.1:{port}/{arm.name}/v1/status"
            credential = (credentials or {}).get(arm.name)
            headers = {"authorization": f"Bearer {credential}"} if credential else {}
            with urllib.request.urlopen(
                urllib.request.Request(url, headers=headers), timeout=10.0
            ) as answer:
                roles[int(json.load(answer)["pid"])] = (arm.name, "scheduler")
    return roles


@dataclass(slots=True)
class RunningArms:
    """The address of each running arm, and the CPU time that the arm has used."""

    config: AppConfig
    """Settings of the application that all arms vary."""
    targets: dict[str, Target] = field(default_factory=dict)
    roles: dict[int, Role] = field(default_factory=dict)
    """(arm, role) by process id, for processes whose titles do not show the arm."""

    def add_server(self, arm: Arm, server: OwnServer, path: str) -> None:
        """Register an arm that runs outside the Serve cluster."""
        self.targets[arm.name] = Target(server.port, path)
        self.roles |= {pid: (arm.name, role) for pid, role in server.roles.items()}

    def read_cpu(self) -> dict[Role, Seconds]:
        """Return the CPU time used so far, by arm and role."""
        return cpu_by_role(os.getpid(), self.roles)


class BenchArms(LocalCluster):
    """Context manager that runs several arms of the first application in a Serve file."""

    def __init__(
        self,
        file: Path,
        arms: Sequence[Arm],
        replicas: int,
        fake: Mapping[str, Any] | None = None,
        *,
        haproxy: bool = True,
    ) -> None:
        """Read the Serve file without starting any arm.

        Args:
            file: A Serve configuration file of this project.
            arms: What to start.
            replicas: Engines of each.
            fake: Options of the fake engine, in place of the file's.
            haproxy: Whether HAProxy is the front of all arms on Serve.

        Raises:
            ConfigError: If the file cannot be read or holds something else.
        """
        super().__init__(_DECLARED_CPUS, haproxy=haproxy)
        self.values = read_serve_config(file)
        application = self.values["applications"][0]
        self._releases = {
            arm: arm_application(application, arm, replicas, self.data_dir, fake)
            for arm in arms
            if arm.code is not None
        }
        self._on_serve = [arm for arm in arms if arm.import_path and arm.code is None]
        self._own = {
            arm: AppConfig.parse(arm_args(application["args"], arm, fake))
            for arm in arms
            if arm.import_path is None
        }
        self.values["applications"] = [
            arm_application(application, arm, replicas, self.data_dir, fake)
            for arm in self._on_serve
        ]
        self._replicas = replicas
        self._servers = ExitStack()
        self.running = RunningArms(AppConfig.parse(application["args"]))

    def __enter__(self) -> Self:
        """Start Ray, deploy the arms on Serve, and start the other arms.

        Raises:
            JustitiaError: If one fails; the message is Serve's, or the end of its output.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray's default niceness of 15 would let other processes distort the figures.
        os.environ.setdefault("RAY_worker_niceness", "0")
        running = self.running
        with ExitStack() as stack:
            for arm, config in self._own.items():
                assert arm.server is not None
                server = stack.enter_context(arm.server(config, self._replicas))
                running.add_server(arm, server, "")
            for arm, values in self._releases.items():
                assert arm.code is not None
                server = stack.enter_context(release_cluster(arm.code, values))
                running.add_server(arm, server, f"/{arm.name}")
                running.roles |= scheduler_roles(server.port, [arm])
            credentials = stack.enter_context(
                guarded(self.values["applications"], self._on_serve, Path(self.data_dir))
            )
            super().__enter__()
            self._servers = stack.pop_all()
        running.targets |= {
            arm.name: Target(self.port, f"/{arm.name}", credential=credentials.get(arm.name, ""))
            for arm in self._on_serve
        }
        running.roles |= scheduler_roles(self.port, self._on_serve, credentials)
        return self

    def renew_engines(self, arm: str) -> None:
        """Replace only an arm's engines by a new version, and wait until it runs.

        Raises:
            JustitiaError: If it does not come up.
        """
        (application,) = (one for one in self.values["applications"] if one["name"] == arm)
        (engines,) = (one for one in application["deployments"] if one["name"] == "Replica")
        options = engines.setdefault("ray_actor_options", {})
        environment = options.setdefault("runtime_env", {}).setdefault("env_vars", {})
        environment["JUSTITIA_BENCH_VERSION"] = str(time.monotonic_ns())
        self.deploy()

    def __exit__(self, *error: Any) -> None:
        with self._servers:
            super().__exit__(*error)
