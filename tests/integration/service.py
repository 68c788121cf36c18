"""Applications deployed on the test cluster, as operators do: by configuration."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import ray
from ray import serve
from ray.actor import ActorHandle
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ServeDeploySchema

from justitia_ray.app_args import PlacedModel, parse_app_args
from justitia_ray.config import AppConfig
from tests.eventually import eventually

MODEL = "fake-7b"
PRODUCT = "justitia_ray.serve.app:build"
PROBED = "tests.integration.probe_app:build"
_SERVE_NAMESPACE = "serve"
DEPLOYED_WITHIN_S = 600.0
"""Starting the processes of one takes a minute and a half on two busy cores."""

Json = dict[str, Any]

SEATS = 8
MAX_MODEL_LEN = 65_536
ENDLESS = 60_000
"""Output tokens of a call that outlasts what a test does meanwhile: it runs for five minutes."""
ITERATION_S = 0.005
_FAKE: Json = {
    "iteration_s": ITERATION_S,
    "max_num_seqs": SEATS,
    "kv_tokens": SEATS * MAX_MODEL_LEN,
    "max_model_len": MAX_MODEL_LEN,
}
"""A fast engine with so few seats that one call can take all of them."""
_SCHEDULER: Json = {
    "replica_timeout_s": 15.0,
    "lease_timeout_s": 30.0,
    "ingress_timeout_s": 300.0,
}
"""Silence of seconds is nothing unusual where everything shares two cores."""
_REPLICA: Json = {"lease_grace_s": 5.0}
"""Nor is a pull's answer that comes a second after the payload."""


@dataclass
class Serving:
    """Serve on the test cluster, with what is deployed on it."""

    client: Any
    """Serve's controller client."""
    base_url: str
    directory: Path
    """Everything that the applications write is under it."""
    namespace: str
    """Of the schedulers."""
    services: dict[str, "Service"] = field(default_factory=dict)
    """What was ever described, by name: each has left a scheduler if it was deployed."""
    deployed: dict[str, Json] = field(default_factory=dict)
    """Serve's configuration of what is to be there."""

    def service(
        self,
        name: str,
        *,
        import_path: str = PRODUCT,
        replicas: int = 2,
        user_config: Json | None = None,
        fake: Json | None = None,
        scheduler: Json | None = None,
        replica: Json | None = None,
        ingress: Json | None = None,
        ingresses: int = 1,
        models: tuple[str, ...] = (),
    ) -> "Service":
        """Describe an application; `deploy` it to have it.

        Args:
            name: Of the Serve application, and its route.
            import_path: The product, or the probed product.
            replicas: Engines; of each model, if there are several.
            user_config: Scheduling settings.
            fake: Of the fake engine, on top of `_FAKE`.
            scheduler: Section of that name, on top of `_SCHEDULER`.
            replica: Section of that name, on top of `_REPLICA`.
            ingress: Section of that name.
            ingresses: Processes of it.
            models: Names of several models; none: one, `MODEL`.
        """
        one: Json = {"model": {"name": MODEL, "path": "none"}}
        args: Json = {
            "name": name,
            **({"models": [{"name": m, "path": "none"} for m in models]} if models else one),
            "engine": {"kind": "fake", "fake": _FAKE | (fake or {})},
            "store": {"data_dir": str(self.directory / "redis"), "save_interval_s": 0.1},
            "scheduler": _SCHEDULER | {"namespace": self.namespace} | (scheduler or {}),
            "replica": _REPLICA | (replica or {}),
            "ingress": ingress or {},
        }
        return self.add(
            Service(self, name, import_path, replicas, user_config or {}, args, ingresses)
        )

    def add(self, service: "Service") -> "Service":
        """Take note of an application, to end its scheduler when the tests are over."""
        self.services[service.name] = service
        return service

    def apply(self) -> None:
        """Deploy what is to be there, and delete the rest."""
        config = ServeDeploySchema.model_validate({"applications": list(self.deployed.values())})
        self.client.deploy_apps(config)


@dataclass
class Service:
    """One deployed application, and the ways into it."""

    serving: Serving
    name: str
    import_path: str
    replicas: int
    user_config: Json
    args: Json
    ingresses: int = 1

    @property
    def placed(self) -> tuple[PlacedModel, ...]:
        """Its models, with the deployments that serve them."""
        return parse_app_args(self.args).each_model()

    @property
    def config(self) -> AppConfig:
        """The configuration of its model; of the first, if it has several."""
        return self.placed[0].config

    @property
    def url(self) -> str:
        """Where it is mounted."""
        return f"{self.serving.base_url}/{self.name}"

    async def deploy(self, within_s: float = DEPLOYED_WITHIN_S) -> None:
        """Deploy it, or what changed of it, and wait until all its replicas pull."""
        self.serving.deployed[self.name] = {
            "name": self.name,
            "route_prefix": f"/{self.name}",
            "import_path": self.import_path,
            "args": self.args,
            "deployments": [
                {
                    "name": "Ingress",
                    "num_replicas": self.ingresses,
                    "ray_actor_options": {"num_cpus": 0.1},
                    "user_config": self.user_config,
                },
                *(
                    {"name": place.predictor, "ray_actor_options": {"num_cpus": 0.1}}
                    for place in self.placed
                ),
                *(
                    {
                        "name": place.replicas,
                        "num_replicas": self.replicas,
                        "ray_actor_options": {"num_cpus": 0.1},
                    }
                    for place in self.placed
                ),
            ],
        }
        self.serving.apply()
        await eventually(self.is_whole, f"{self.name} runs", within_s)

    async def is_whole(self) -> bool:
        """Return whether Serve has all its replicas and no other, and all of them pull.

        One that pulls may be one that Serve has not told its callers of.
        """
        application = serve.status().applications.get(self.name)
        if application is not None and application.status == "DEPLOY_FAILED":
            raise AssertionError(application.message)
        if application is None or application.status != "RUNNING":
            return False
        for place in self.placed:
            states = application.deployments[place.replicas].replica_states
            pulling = await self.pulling(place.config)
            if states != {"RUNNING": self.replicas} or len(pulling) != self.replicas:
                return False
        return True

    async def delete(self) -> None:
        """Take it off Serve; its scheduler stays."""
        del self.serving.deployed[self.name]
        self.serving.apply()
        await eventually(
            lambda: self.name not in serve.status().applications, f"{self.name} is gone", 60.0
        )

    # --- ways in

    def handle(self, deployment: str = "Ingress") -> DeploymentHandle:
        """Return a handle of one of its deployments."""
        return serve.get_deployment_handle(deployment, self.name)

    def http(self, timeout_s: float = 60.0) -> httpx.AsyncClient:
        """Return an HTTP client of it, to be entered; it opens as many connections as it takes."""
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self.url, timeout=timeout_s, limits=limits)

    def scheduler(self, config: AppConfig | None = None) -> ActorHandle:
        """Return the scheduler actor of a model, by default of the first."""
        name = (config or self.config).scheduler_name
        return ray.get_actor(name, namespace=self.serving.namespace)

    async def status(self, config: AppConfig | None = None) -> Json:
        """Return the status of a model's scheduler, by default of the first."""
        status: Json = await self.scheduler(config).status.remote()
        return status

    async def pulling(self, config: AppConfig | None = None) -> list[str]:
        """Return the replicas that a model's scheduler hears of and leases to."""
        try:
            status = await self.status(config)
        except (ValueError, ray.exceptions.RayActorError):
            return []  # no scheduler yet, or not yet again
        replicas: Json = status.get("replicas", {})
        return sorted(name for name, replica in replicas.items() if not replica["draining"])

    async def probe(self, replica_id: str, method: str, *args: Any) -> Any:
        """Call a method of one probed replica."""
        handle = self.handle("Replica").options(session_id=replica_id)
        return await getattr(handle, method).remote(*args)

    def actors(self, deployment: str) -> list[str]:
        """Return the names of a deployment's actors."""
        prefix = f"SERVE_REPLICA::{self.name}#{deployment}#"
        everywhere = ray.util.list_named_actors(all_namespaces=True)
        return sorted(a["name"] for a in everywhere if a["name"].startswith(prefix))

    def kill_one(self, deployment: str) -> str:
        """Kill one process of a deployment at once; return its actor's name."""
        name = self.actors(deployment)[0]
        ray.kill(ray.get_actor(name, namespace=_SERVE_NAMESPACE))
        return name

    def kill_replica(self, replica_id: str) -> None:
        """Kill a replica's process at once, as a machine that loses power does."""
        actor = ray.get_actor(
            f"SERVE_REPLICA::{self.name}#Replica#{replica_id}", namespace=_SERVE_NAMESPACE
        )
        ray.kill(actor)

    # --- waiting

    async def until(
        self,
        condition: Callable[[Json], bool],
        what: str,
        within_s: float = 60.0,
        config: AppConfig | None = None,
    ) -> Json:
        """Return the first status for which the condition holds, of the first model or this one."""
        last: Json = {}

        async def holds() -> bool:
            nonlocal last
            try:
                last = await self.status(config)
            except ray.exceptions.RayActorError:
                return False  # it is being started again
            return condition(last)

        try:
            await eventually(holds, what, within_s)
        except AssertionError as late:
            raise AssertionError(f"{late}: {last}") from None
        return last

    async def until_idle(self, within_s: float = 60.0) -> Json:
        """Return the first model's status once nothing of any waits, runs or holds KV any more."""
        what = "nothing waits, runs or holds KV"
        statuses = [
            await self.until(is_idle, what, within_s, place.config) for place in self.placed
        ]
        return statuses[0]


def is_idle(status: Json) -> bool:
    """Return whether a status says that nothing of any inference is left."""
    left = ("waiting", "in_flight", "applications")
    return all(status.get(name) == 0 for name in left)


def redis_processes(directory: Path) -> list[int]:
    """Return the Redis servers that keep their data under this directory."""
    return [
        process.pid
        for process in psutil.process_iter(["name", "cwd"])
        if process.info["name"] == "redis-server"
        and process.info["cwd"] is not None
        and Path(process.info["cwd"]).is_relative_to(directory)
    ]


def engine_processes() -> list[psutil.Process]:
    """Return vLLM's processes below the cluster that this process has started.

    An engine that tests run in this very process is its child and not among them.
    """
    clusters = [child for child in psutil.Process().children() if not _is_engine(child)]
    return [
        process
        for cluster in clusters
        for process in cluster.children(recursive=True)
        if _is_engine(process)
    ]


def _is_engine(process: psutil.Process) -> bool:
    try:
        return bool(process.name().startswith("VLLM::"))
    except psutil.NoSuchProcess:
        return False  # Ray's workers come and go


def processes_in(directory: Path) -> list[int]:
    """Return the processes that must be gone once everything is ended."""
    return redis_processes(directory) + [process.pid for process in engine_processes()]
