"""Every part's own view of one model, gathered at one time.

A part that does not answer in time is a result, not a failure.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from itertools import islice
from typing import Any, TypeVar

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.context import _get_global_client  # `serve.status` leaves out the replicas

from justitia_ray.app_args import PlacedModel
from justitia_ray.protocol.examination import (
    MOST_ENTRIES,
    Examination,
    IngressOwn,
    ReplicaOwn,
    SchedulerSeen,
    ServeReplica,
    ServeSeen,
)
from justitia_ray.serve.dispatcher import Dispatcher
from justitia_ray.serve.replica_calls import ReplicaCalls
from justitia_ray.units import Seconds

_SCHEDULER_S: Seconds = 10.0
"""It walks over all there is."""
_REPLICA_S: Seconds = 3.0
"""A router waits 2 s for a replica that it does not know yet."""
_SERVE_S: Seconds = 5.0

T = TypeVar("T")


class ExaminationCalls:
    """Asks everybody."""

    def __init__(
        self,
        placed: PlacedModel,
        serve_name: str,
        scheduler: ActorHandle,
        replicas: ReplicaCalls,
        dispatcher: Dispatcher,
    ) -> None:
        """Take the handles.

        Args:
            placed: The model, and the deployments that serve it.
            serve_name: What Serve calls the application.
            scheduler: The scheduler actor.
            replicas: Calls to single replicas.
            dispatcher: This ingress's side of the queue.
        """
        self._placed = placed
        self._serve_name = serve_name
        self._scheduler = scheduler
        self._replicas = replicas
        self._dispatcher = dispatcher
        self._asking_serve: asyncio.Future[ServeSeen] | None = None
        self._under_way: asyncio.Task[Examination] | None = None

    async def examine(self) -> Examination:
        """Return what all say; who asks while another one does gets the same."""
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._examine())
        return await asyncio.shield(self._under_way)

    async def _examine(self) -> Examination:
        silent: dict[str, str] = {}
        scheduler, seen_by_serve = await asyncio.gather(
            _within(_SCHEDULER_S, "scheduler", self._ask_scheduler(), silent),
            _within(_SERVE_S, "serve", self._ask_serve(), silent),
        )
        known = {} if scheduler is None else dict.fromkeys(scheduler.replicas)
        if seen_by_serve is not None:
            running = (n for n, r in seen_by_serve.replicas.items() if r.state == "RUNNING")
            known |= dict.fromkeys(running)
        answers = await asyncio.gather(
            *(_within(_REPLICA_S, name, self._ask_replica(name), silent) for name in known)
        )
        return Examination(
            name=self._placed.config.name,
            model=self._placed.config.model.name,
            scheduler=scheduler,
            replicas={n: a for n, a in zip(known, answers, strict=True) if a is not None},
            ingress=self._own(),
            serve=seen_by_serve,
            silent=silent,
        )

    def _own(self) -> IngressOwn:
        tickets = self._dispatcher.tickets()
        return IngressOwn(
            ingress_id=self._dispatcher.ingress_id,
            epoch=self._dispatcher.epoch,
            open_applications=self._dispatcher.open_applications(),
            tickets={
                name: ticket.held_lease() is None
                for name, ticket in islice(tickets.items(), MOST_ENTRIES)
            },
            left_out=max(0, len(tickets) - MOST_ENTRIES),
        )

    async def _ask_scheduler(self) -> SchedulerSeen:
        return SchedulerSeen.model_validate(await self._scheduler.examine.remote())

    async def _ask_replica(self, replica_id: str) -> ReplicaOwn:
        return ReplicaOwn.model_validate(await self._replicas.examine(replica_id))

    async def _ask_serve(self) -> ServeSeen:
        """Ask the controller; one question at a time, for it may never be answered."""
        if self._asking_serve is None or self._asking_serve.done():
            asking = asyncio.to_thread(_seen_by_serve, self._serve_name, self._placed)
            self._asking_serve = asyncio.ensure_future(asking)
        return await asyncio.shield(self._asking_serve)


async def _within(
    limit_s: Seconds, name: str, answer: Awaitable[T], silent: dict[str, str]
) -> T | None:
    """Return an answer that comes in time; of one that does not, note why."""
    try:
        return await asyncio.wait_for(answer, limit_s)
    except TimeoutError:
        silent[name] = f"no answer within {limit_s:g} s"
    except RayActorError:
        silent[name] = "its process is gone or being started again"
    except RayTaskError as error:
        silent[name] = f"{type(error.cause).__name__}: {error.cause}"
    except Exception as error:  # whatever it is: who examines is to hear of it, and of the rest
        silent[name] = f"{type(error).__name__}: {error}"
    return None


def _seen_by_serve(serve_name: str, placed: PlacedModel) -> ServeSeen:
    """Ask Serve's controller and the cluster. Blocks."""
    details = _get_global_client().get_serve_details()["applications"][serve_name]
    deployments = details["deployments"]
    return ServeSeen(
        nodes=sum(bool(node["Alive"]) for node in ray.nodes()),
        replicas={
            replica["replica_id"]: ServeReplica(
                state=replica["state"], pid=replica.get("pid"), node_ip=replica.get("node_ip")
            )
            for replica in deployments[placed.replicas]["replicas"]
        },
        ingresses=_running(deployments["Ingress"]),
        predictors=_running(deployments[placed.predictor]),
    )


def _running(deployment: Mapping[str, Any]) -> int:
    return sum(replica["state"] == "RUNNING" for replica in deployment["replicas"])
