"""Inspection of one model: the reports of all its processes, gathered at the same time.

A part that does not answer in time is reported as silent; the inspection does not fail.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Mapping
from itertools import islice
from typing import Any, TypeVar

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.context import _get_global_client  # The function `serve.status` would lack replicas.

from justitia_ray.config import PlacedModel
from justitia_ray.protocol.inspection import (
    MAX_ENTRIES,
    IngressReport,
    Inspection,
    ProxyFacts,
    ReplicaReport,
    SchedulerReport,
    ServeReplica,
    ServeReport,
)
from justitia_ray.protocol.proxies import proxied_addresses
from justitia_ray.serve.front import read_front
from justitia_ray.serve.ingress.queue_client import QueueClient
from justitia_ray.serve.ingress.replica_calls import ReplicaCalls
from justitia_ray.serve.ingress.serve_facts import deployment_facts, failure
from justitia_ray.units import ReplicaId, Seconds

_SCHEDULER_S: Seconds = 10.0
"""Maximum seconds of the scheduler's report, which visits all applications and inferences."""
_REPLICA_S: Seconds = 3.0
"""Maximum seconds of a replica's report, which may need a new connection."""
_SERVE_S: Seconds = 5.0
_FALLBACK_PROXY = "SERVE_PROXY_ACTOR-fallback-"
"""Name of the proxy actor that Ray Serve starts only behind HAProxy, for times when no ingress
runs.
"""

T = TypeVar("T")


class InspectionCalls:
    """Collects reports from a model's scheduler and replicas, Ray Serve and this ingress.

    Args:
        placed: The model, and the deployments that serve it.
        serve_name: Name of the application in Serve.
        scheduler: The scheduler actor.
        replicas: Calls to single replicas.
        queue_client: This ingress's client of the model's queue.
    """

    def __init__(
        self,
        placed: PlacedModel,
        serve_name: str,
        scheduler: ActorHandle,
        replicas: ReplicaCalls,
        queue_client: QueueClient,
    ) -> None:
        self._placed = placed
        self._serve_name = serve_name
        self._scheduler = scheduler
        self._replicas = replicas
        self._queue_client = queue_client
        self._asking_serve: asyncio.Future[ServeReport] | None = None
        self._under_way: asyncio.Task[Inspection] | None = None

    async def inspect(self) -> Inspection:
        """Return the reports of all processes; concurrent calls share one inspection."""
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._inspect_once())
        return await asyncio.shield(self._under_way)

    async def _inspect_once(self) -> Inspection:
        silent: dict[str, str] = {}
        scheduler, seen_by_serve = await asyncio.gather(
            _answer_within(_SCHEDULER_S, "scheduler", self._scheduler_report(), silent),
            _answer_within(_SERVE_S, "serve", self._serve_report(), silent),
        )
        known: dict[ReplicaId, None] = {}
        if scheduler is not None:
            known = dict.fromkeys(scheduler.replicas)
            self._replicas.links.note_addresses(
                {name: facts.address for name, facts in scheduler.replicas.items() if facts.address}
            )
        if seen_by_serve is not None:
            running = (n for n, r in seen_by_serve.replicas.items() if r.state == "RUNNING")
            known |= dict.fromkeys(running)
        answers = await asyncio.gather(
            *(
                _answer_within(_REPLICA_S, name, self._replica_report(name), silent)
                for name in known
            )
        )
        return Inspection(
            name=self._placed.config.name,
            model=self._placed.config.model.name,
            scheduler=scheduler,
            replicas={n: a for n, a in zip(known, answers, strict=True) if a is not None},
            ingress=self._own_report(seen_by_serve),
            serve=seen_by_serve,
            silent=silent,
        )

    def _own_report(self, seen_by_serve: ServeReport | None) -> IngressReport:
        pending = self._queue_client.pending
        replicas = {} if seen_by_serve is None else seen_by_serve.replicas
        nodes = {replica.node_ip for replica in replicas.values() if replica.node_ip}
        variable, addresses = proxied_addresses(nodes, os.environ)
        return IngressReport(
            ingress_id=self._queue_client.session.ingress_id,
            epoch=self._queue_client.session.epoch,
            open_applications=len(pending.applications),
            tickets={
                name: inference.held_lease() is None
                for name, inference in islice(pending.inferences.items(), MAX_ENTRIES)
            },
            left_out=max(0, len(pending.inferences) - MAX_ENTRIES),
            max_outstanding=self._placed.config.ingress.max_outstanding,
            front=read_front(),
            proxied=None
            if variable is None
            else ProxyFacts(variable=variable, addresses=addresses),
        )

    async def _scheduler_report(self) -> SchedulerReport:
        return SchedulerReport.model_validate(await self._scheduler.inspect.remote())

    async def _replica_report(self, replica_id: str) -> ReplicaReport:
        return ReplicaReport.model_validate(await self._replicas.inspect(replica_id))

    async def _serve_report(self) -> ServeReport:
        """Query Serve's controller; one query at a time, as its answer may never arrive."""
        if self._asking_serve is None or self._asking_serve.done():
            asking = asyncio.to_thread(_seen_by_serve, self._serve_name, self._placed)
            self._asking_serve = asyncio.ensure_future(asking)
        return await asyncio.shield(self._asking_serve)


async def _answer_within(
    limit_s: Seconds, name: str, answer: Awaitable[T], silent: dict[str, str]
) -> T | None:
    """Return an answer; if it is late, record the reason in `silent` and return None."""
    try:
        return await asyncio.wait_for(answer, limit_s)
    except TimeoutError:
        silent[name] = f"no answer within {limit_s:g} s"
    except RayActorError:
        silent[name] = "its process is gone or being started again"
    except RayTaskError as error:
        silent[name] = f"{type(error.cause).__name__}: {error.cause}"
    except Exception as error:  # An operator finds the failure in the report.
        silent[name] = f"{type(error).__name__}: {error}"
    return None


def _seen_by_serve(serve_name: str, placed: PlacedModel) -> ServeReport:
    """Return what Serve's controller and the Ray cluster report; blocks the thread."""
    details = _get_global_client().get_serve_details()
    application = details["applications"][serve_name]
    deployments, nodes, now = application["deployments"], ray.nodes(), time.time()
    ours = (placed.replicas, placed.predictor, "Ingress")
    actors = (actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True))
    behind_haproxy = any(name.startswith(_FALLBACK_PROXY) for name in actors)
    return ServeReport(
        nodes=sum(bool(node["Alive"]) for node in nodes),
        replicas={
            replica["replica_id"]: ServeReplica(
                state=replica["state"], pid=replica.get("pid"), node_ip=replica.get("node_ip")
            )
            for replica in deployments[placed.replicas]["replicas"]
        },
        ingresses=_running_replicas(deployments["Ingress"]),
        predictors=_running_replicas(deployments[placed.predictor]),
        front="haproxy" if behind_haproxy else "serve",
        tls=_asks_for_tls(details.get("http_options")),
        failing={
            name: reason for name in ours if (reason := failure(deployments[name])) is not None
        },
        deployments={
            name: deployment_facts(
                deployments[name], nodes, application["last_deployed_time_s"], now
            )
            for name in ours
        },
    )


def _asks_for_tls(http_options: Mapping[str, Any] | None) -> bool | None:
    """Return whether Serve's HTTP options enable TLS; None: the options are unknown."""
    if http_options is None:
        return None
    return bool(http_options.get("ssl_certfile") and http_options.get("ssl_keyfile"))


def _running_replicas(deployment: Mapping[str, Any]) -> int:
    return sum(replica["state"] == "RUNNING" for replica in deployment["replicas"])
