"""Applications that tests deploy on a shared cluster by Serve configuration, as operators do."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import ray
from ray import serve
from ray.actor import ActorHandle
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ServeDeploySchema

from justitia_ray.config import AppArgs, AppConfig, PlacedModel
from justitia_ray.serve.accounts.handle import end_accounts
from justitia_ray.serve.scheduler.handle import end_scheduler
from tests.eventually import eventually
from tests.harness.probe import probe

MODEL = "fake-7b"
PRODUCT = "justitia_ray.serve.app:build"
PROBED = "tests.integration.probe_app:build"
_SERVE_NAMESPACE = "serve"
DEPLOYED_WITHIN_S = 600.0
"""Time limit of a deployment: starting its processes takes 90 s on two busy cores."""
_POLLED_S = 1.0
"""Seconds between status requests: they take CPU time from processes that are starting."""

Json = dict[str, Any]

SEATS = 8
MAX_MODEL_LEN = 65_536
ENDLESS = 60_000
"""Output tokens of a call that outlasts any test: the fake engine takes five minutes for them."""
ITERATION_S = 0.005
_FAKE: Json = {
    "iteration_s": ITERATION_S,
    "max_num_seqs": SEATS,
    "kv_tokens": SEATS * MAX_MODEL_LEN,
    "max_model_len": MAX_MODEL_LEN,
}
"""Settings of a fast fake engine with 8 seats, so that one call can occupy all of them."""
_SCHEDULER: Json = {
    "replica_timeout_s": 15.0,
    "lease_timeout_s": 30.0,
    "ingress_timeout_s": 300.0,
}
"""Long scheduler timeouts, because processes that share two cores may be silent for seconds."""
_REPLICA: Json = {"lease_grace_s": 5.0}
"""Long grace time of replicas, because a pull's answer may come a second after the inference."""


@dataclass
class Serving:
    """Ray Serve on the test cluster, with the applications that tests deploy."""

    client: Any
    """Client of Serve's controller."""
    base_url: str
    directory: Path
    """Directory of all files that the applications write."""
    namespace: str
    """Ray namespace of the schedulers."""
    services: dict[str, "Service"] = field(default_factory=dict)
    """Known applications by name; each application that was deployed leaves a scheduler behind."""
    deployed: dict[str, Json] = field(default_factory=dict)
    """Serve configuration of each application to be deployed."""
    retired: set[str] = field(default_factory=set)
    """Names of removed applications whose schedulers may still run."""

    def service(
        self,
        name: str,
        *,
        import_path: str = PRODUCT,
        replicas: int = 2,
        user_config: Json | None = None,
        models: tuple[str, ...] = (MODEL,),
        fake: Json | None = None,
        **sections: Json,
    ) -> "Service":
        """Define an application; `Service.deploy` starts it.

        Args:
            name: Of the Serve application, and its route.
            import_path: The product, or the probed product.
            replicas: Engines of each model.
            user_config: Scheduling settings.
            models: Their names.
            fake: Of the fake engine, on top of `_FAKE`.
            sections: Of the arguments, by name; `_SCHEDULER` and `_REPLICA` are under them.
        """
        named = [{"name": model, "path": "none"} for model in models]
        args: Json = {
            "name": name,
            **({"model": named[0]} if len(named) == 1 else {"models": named}),
            "engine": {"kind": "fake", "fake": _FAKE | (fake or {})},
            "store": {"data_dir": str(self.directory / "redis"), "save_interval_s": 0.1},
            **sections,
            "scheduler": {
                **_SCHEDULER,
                "namespace": self.namespace,
                **sections.get("scheduler", {}),
            },
            "replica": _REPLICA | sections.get("replica", {}),
        }
        return self.add(Service(self, name, import_path, replicas, user_config or {}, args))

    @asynccontextmanager
    async def deployed_service(self, name: str, **settings: Any) -> AsyncIterator["Service"]:
        """Yield a deployed application, and remove it at the end."""
        service = self.service(name, **settings)
        await service.deploy()
        yield service
        self.retire(name)

    @asynccontextmanager
    async def deployed_applications(self, *applications: Json) -> AsyncIterator[None]:
        """Run Serve applications during a `with` block.

        They start one after the other: fifty processes that start at once on two cores block each
        other and everything else on the machine.
        """
        await asyncio.to_thread(self.end_retired)
        for application in applications:
            name = application["name"]
            self.deployed[name] = application
            self.apply()
            await eventually(
                partial(self._application_runs, name),
                f"{name} runs",
                DEPLOYED_WITHIN_S,
                every_s=_POLLED_S,
            )
        yield
        self.retire(*(application["name"] for application in applications))

    def _application_runs(self, name: str) -> bool:
        application = self.applications().get(name)
        return application is not None and application["status"] == "RUNNING"

    def applications(self) -> dict[str, Json]:
        """Return Serve's status of each application, by name.

        `serve.status` builds models from it and inspects every imported module each time.
        """
        found: dict[str, Json] = self.client.get_serve_details()["applications"]
        return found

    def remove(self, *names: str) -> None:
        """Remove applications from Serve without waiting for the end of their processes."""
        for name in names:
            self.deployed.pop(name, None)
        self.apply()

    def retire(self, *names: str) -> None:
        """Remove applications from Serve, and mark their schedulers so that they are ended later.

        Their schedulers end when the next application is deployed, because ending replicas and
        ingresses still look for them.
        """
        self.remove(*names)
        self.retired |= {*names}

    def end_retired(self) -> None:
        """End the schedulers of removed applications.

        Each idle one takes 2 % of a core, and a test run has thirty.
        """
        gone = self.retired - self.applications().keys()
        self.retired -= gone
        for name in sorted(gone & self.services.keys()):
            self.services[name].end_detached()

    def add(self, service: "Service") -> "Service":
        """Register an application, so that its scheduler ends after the tests.

        Raises ValueError for a repeated name: the application would start with the queue, settings
        and predictions that the first one left.
        """
        if service.name in self.services:
            raise ValueError(f"name: {service.name!r} was an application's; each has its own here")
        self.services[service.name] = service
        return service

    def apply(self) -> None:
        """Deploy all registered applications, and delete all others."""
        config = ServeDeploySchema.model_validate({"applications": list(self.deployed.values())})
        self.client.deploy_apps(config)


@dataclass
class Service:
    """Application of this project on the test cluster, with its clients and handles."""

    serving: Serving
    name: str
    import_path: str
    replicas: int
    user_config: Json
    args: Json
    ingresses: int = 1
    rollout: Json = field(default_factory=dict)
    """Serve options for the replacement of an old version's replicas."""
    code: Path | None = None
    """Directory of the package that the processes import; None for the code under test."""
    api_key: str | None = None
    """API key of the HTTP clients; None if the application requires none."""

    @property
    def placed(self) -> tuple[PlacedModel, ...]:
        """Models of the application, with the deployments that serve them."""
        return AppArgs.parse(self.args).each_model()

    @property
    def config(self) -> AppConfig:
        """Configuration of the application's first model."""
        return self.placed[0].config

    @property
    def url(self) -> str:
        """Base URL of the application."""
        return f"{self.serving.base_url}/{self.name}"

    async def deploy(self, within_s: float = DEPLOYED_WITHIN_S) -> None:
        """Deploy the application or its changes, and wait until all replicas pull inferences."""

        def options_of(deployment: str, **more: Any) -> Json:
            return {"name": deployment, "ray_actor_options": {"num_cpus": 0.1}, **more}

        await asyncio.to_thread(self.serving.end_retired)
        self.serving.deployed[self.name] = {
            "name": self.name,
            "route_prefix": f"/{self.name}",
            "import_path": self.import_path,
            "args": self.args,
            "runtime_env": {"env_vars": {"PYTHONPATH": str(self.code)}} if self.code else {},
            "deployments": [
                options_of("Ingress", num_replicas=self.ingresses, user_config=self.user_config),
                *(options_of(place.predictor) for place in self.placed),
                *(
                    options_of(place.replicas, **self._replica_count(place), **self.rollout)
                    for place in self.placed
                ),
            ],
        }
        self.serving.apply()
        await self.wait_until_complete(within_s)

    def _replica_count(self, place: PlacedModel) -> Json:
        """Return the option `num_replicas`; empty if the application sets `autoscaling`."""
        return {} if place.config.autoscaling else {"num_replicas": self.replicas}

    async def wait_until_complete(self, within_s: float = DEPLOYED_WITHIN_S) -> None:
        """Wait until all parts of the application run; on failure show Serve's status of each."""
        try:
            await eventually(self.is_complete, f"{self.name} runs", within_s, every_s=_POLLED_S)
        except AssertionError as failure:
            failure.add_note(f"Serve says: {self._part_statuses()}")
            raise

    def _part_statuses(self) -> Json:
        application = self.serving.applications().get(self.name, {})
        deployments: Json = application.get("deployments", {})
        return {
            "application": (application.get("status"), application.get("message")),
            **{
                name: (part["message"], [replica["state"] for replica in part["replicas"]])
                for name, part in deployments.items()
            },
        }

    async def is_complete(self) -> bool:
        """Return whether Serve has exactly the wanted replicas, and all of them pull.

        For some seconds Serve and the scheduler still count a dead replica.
        """
        application = self.serving.applications().get(self.name)
        if application is not None and application["status"] == "DEPLOY_FAILED":
            raise AssertionError(application["message"])
        if application is None or application["status"] != "RUNNING":
            return False

        def live_replicas(deployment: str) -> list[Json]:
            replicas: list[Json] = application["deployments"][deployment]["replicas"]
            return replicas

        if ["RUNNING"] * self.ingresses != [one["state"] for one in live_replicas("Ingress")]:
            return False
        for place in self.placed:
            replicas = live_replicas(place.replicas)
            pulling = await self.pulling_replicas(place.config)
            states = [one["state"] for one in replicas]
            if states != ["RUNNING"] * self.replicas or len(pulling) != self.replicas:
                return False
            living = {one["replica_id"] for one in replicas if psutil.pid_exists(one["pid"] or 0)}
            if not set(pulling) <= living:
                return False
        return True

    async def delete(self) -> None:
        """Remove the application from Serve; its scheduler actor keeps running."""
        self.serving.remove(self.name)
        await eventually(
            lambda: self.name not in self.serving.applications(),
            f"{self.name} has gone",
            within_s=60.0,
            every_s=_POLLED_S,
        )

    def end_detached(self) -> None:
        """End the application's schedulers, quota service and Redis servers."""
        for place in self.placed:
            end_scheduler(place.config.scheduler_name, place.config.scheduler.namespace)
            end_accounts(place.config.name, place.config.scheduler.namespace)

    # --- clients and handles

    def handle(self, deployment: str = "Ingress") -> DeploymentHandle:
        return serve.get_deployment_handle(deployment, self.name)

    def http(self) -> httpx.AsyncClient:
        """Return an HTTP client with unlimited connections, to be used as a context manager.

        Its timeout is long: while the only ingress is replaced, Serve's proxy holds calls back.
        """
        return httpx.AsyncClient(
            base_url=self.url,
            timeout=DEPLOYED_WITHIN_S,
            limits=httpx.Limits(max_connections=None),
            headers={} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"},
        )

    def scheduler(self, config: AppConfig | None = None) -> ActorHandle:
        """Return the scheduler actor of a model, by default of the first."""
        name = (config or self.config).scheduler_name
        return ray.get_actor(name, namespace=self.serving.namespace)

    async def status(self, config: AppConfig | None = None) -> Json:
        """Return the scheduler's status of a model, by default of the first."""
        status: Json = await self.scheduler(config).status.remote()
        return status

    async def pulling_replicas(self, config: AppConfig | None = None) -> list[str]:
        """Return the replicas that report to a model's scheduler and pull inferences."""
        try:
            status = await self.status(config)
        except (ValueError, ray.exceptions.RayActorError):
            return []  # The scheduler is still starting or restarting.
        replicas: Json = status.get("replicas", {})
        return sorted(name for name, replica in replicas.items() if not replica["draining"])

    async def probe(self, replica_id: str, method: str, *args: Any) -> Any:
        return await probe(self.handle("Replica"), replica_id, method, *args)

    async def busy_kv_tokens(self) -> float:
        """Return the KV tokens in use, from the engines' own gauges."""
        stats = [
            await self.probe(replica_id, "record_autoscaling_stats")
            for replica_id in await self.pulling_replicas()
        ]
        return float(sum(one["busy_kv_tokens"] for one in stats))

    async def kv_is_free(self) -> bool:
        return await self.busy_kv_tokens() == 0

    def actor_names(self, deployment: str | None = None) -> list[str]:
        prefix = f"SERVE_REPLICA::{self.name}#" + (f"{deployment}#" if deployment else "")
        everywhere = ray.util.list_named_actors(all_namespaces=True)
        return sorted(a["name"] for a in everywhere if a["name"].startswith(prefix))

    def kill(self, actor: str) -> None:
        """Kill an actor's process at once, as a power failure would."""
        ray.kill(ray.get_actor(actor, namespace=_SERVE_NAMESPACE))

    def kill_replica(self, replica_id: str) -> None:
        self.kill(f"SERVE_REPLICA::{self.name}#Replica#{replica_id}")

    # --- waiting

    async def until(
        self,
        condition: Callable[[Json], bool],
        what: str,
        within_s: float = 60.0,
        config: AppConfig | None = None,
    ) -> Json:
        """Wait until a model's status satisfies the condition, and return the status."""
        last: Json = {}

        async def condition_holds() -> bool:
            nonlocal last
            try:
                last = await self.status(config)
            except ray.exceptions.RayActorError:
                return False  # the scheduler is restarting
            return condition(last)

        try:
            await eventually(condition_holds, what, within_s)
        except AssertionError as late:
            raise AssertionError(f"{late}: {last}") from None
        return last

    async def until_idle(self, within_s: float = 60.0) -> Json:
        """Wait until no model has inferences or KV tokens; return the first model's status."""
        what = "nothing waits, runs or holds KV"
        statuses = [
            await self.until(is_idle, what, within_s, place.config) for place in self.placed
        ]
        return statuses[0]


def is_idle(status: Json) -> bool:
    """Return whether a status shows no inference and no application."""
    left = ("waiting", "in_flight", "applications")
    return all(status.get(name) == 0 for name in left)


def redis_process_ids(directory: Path) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["name", "cwd"])
        if process.info["name"] == "redis-server"
        and process.info["cwd"] is not None
        and Path(process.info["cwd"]).is_relative_to(directory)
    ]


def process_ids_in(directory: Path) -> list[int]:
    """Return the processes in a directory that must have ended with the applications.

    They are the Redis servers there, and vLLM's processes below the cluster that this process has
    started. An engine that tests run in this process is its child and is excluded.
    """
    clusters = [child for child in psutil.Process().children() if not _is_engine(child)]
    return redis_process_ids(directory) + [
        process.pid
        for cluster in clusters
        for process in cluster.children(recursive=True)
        if _is_engine(process)
    ]


def _is_engine(process: psutil.Process) -> bool:
    try:
        return bool(process.name().startswith("VLLM::"))
    except psutil.NoSuchProcess:
        return False  # Ray's workers come and go
