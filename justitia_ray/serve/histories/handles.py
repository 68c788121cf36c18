"""What stands in the place of Ray's handles: the same calls, through the network of a history."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from ray.exceptions import RayActorError

from justitia_ray.errors import ReplicaGone
from justitia_ray.serve.histories.calls import Response, Stream
from justitia_ray.serve.histories.network import Network, here
from justitia_ray.serve.histories.process import Process
from justitia_ray.units import Epoch, ReplicaId, Seconds

_EPOCHS: dict[str, Callable[[tuple[Any, ...]], Epoch]] = {
    "submit_many": lambda args: args[1],
    "poll_grants": lambda args: args[1],
    "pull": lambda args: args[0].epoch,
}
"""Where calls name an epoch."""


class Target(Protocol):
    """A process that takes calls, and the object in it."""

    process: Process

    @property
    def answers(self) -> Any:
        """The object whose methods are called."""


class RoutedReplica(Target, Protocol):
    """A replica as routers know it."""

    routed_at: Seconds
    """From when on routers know it."""
    unrouted_at: Seconds | None
    """From when on they know that it is gone."""


class _Method:
    """One method of a handle."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.remote = call


class SchedulerHandle:
    """The scheduler actor's handle in one process."""

    def __init__(
        self,
        network: Network,
        find: Callable[[Process], Target | None],
        on_epoch: Callable[[Process, Epoch], None],
    ) -> None:
        """Make a handle.

        Args:
            network: Carries the calls.
            find: Returns the scheduler that a process would reach now, if there is one.
            on_epoch: Told which epoch a process names in a call.
        """
        self._network = network
        self._find = find
        self._on_epoch = on_epoch

    def __getattr__(self, name: str) -> _Method:
        named = _EPOCHS.get(name)

        def call(*args: Any) -> Response:
            source = here()
            if named is not None:
                self._on_epoch(source, named(args))
            target = self._find(source)
            if target is None:
                return failed(self._network, RayActorError())
            found = target
            return self._network.call(
                source, found.process, lambda: getattr(found.answers, name)(*args), name
            )

        method = _Method(call)
        setattr(self, name, method)
        return method


class NobodyHandle:
    """The handle of a deployment that cannot be reached."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def __getattr__(self, name: str) -> _Method:
        return _Method(lambda *args: failed(self._network, RayActorError()))


class ReplicaHandle:
    """The Replica deployment's handle, with the router behind it (`serve.lease_router`)."""

    def __init__(
        self,
        network: Network,
        replicas: dict[ReplicaId, RoutedReplica],
        now: Callable[[], Seconds],
        session_id: ReplicaId = "",
    ) -> None:
        self._network = network
        self._replicas = replicas
        self._now = now
        self._session_id = session_id

    def options(self, *, session_id: ReplicaId, stream: bool) -> "ReplicaHandle":
        """Return a handle whose calls go to one replica."""
        return ReplicaHandle(self._network, self._replicas, self._now, session_id)

    @property
    def unary(self) -> _Method:
        """A call with one answer."""

        def call(*args: Any) -> Response:
            replica = self._routed()
            if replica is None:
                return failed(self._network, ReplicaGone("", self._session_id))
            return self._network.call(
                here(),
                replica.process,
                lambda: replica.answers.unary(*args),
                "unary",
                replica.routed_at,
            )

        return _Method(call)

    @property
    def stream(self) -> _Method:
        """A call with a stream of answers."""

        def call(*args: Any) -> Stream:
            replica = self._routed()
            if replica is None:
                stream = Stream(lambda: None)
                stream.put(ReplicaGone("", self._session_id))
                return stream
            return self._network.stream(
                here(),
                replica.process,
                lambda: replica.answers.stream(*args),
                "stream",
                replica.routed_at,
            )

        return _Method(call)

    def _routed(self) -> RoutedReplica | None:
        replica = self._replicas.get(self._session_id)
        if replica is None:
            return None
        gone = replica.unrouted_at is not None and replica.unrouted_at <= self._now()
        return None if gone else replica


def failed(network: Network, error: Exception) -> Response:
    """Return a call that fails soon."""
    answer = asyncio.get_running_loop().create_future()
    network.fail(answer, error)
    return Response(answer, lambda: None)
