"""Find, create, replace and end the detached scheduler actor; stay connected over its restarts.

After a call to a restarting actor has failed, Ray reports the actor's new state only a second or
more later, because it waits for information about the death. Retrying each failed call would find
the new actor too late by that time. So when the connection is lost, the actor is asked for its
address ten times a second, without waiting for earlier calls.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorDiedError, RayActorError, RayError, RayTaskError

from justitia_ray import __version__
from justitia_ray.config import AppConfig
from justitia_ray.errors import ConnectionLost, JustitiaError, RemoteFailure, SchedulerSuperseded
from justitia_ray.observability.log_events import is_logged, log_event
from justitia_ray.serve.detached import end_detached, get_detached, is_older
from justitia_ray.serve.scheduler.actor import SchedulerActor
from justitia_ray.serve.transport.handshake import Keyring, Offer
from justitia_ray.serve.transport.link import Link
from justitia_ray.units import Seconds

logger = logging.getLogger("ray.serve")  # Processes that look up actors log here.

_MAX_CONCURRENCY = 100_000
"""Maximum number of concurrent calls of the scheduler actor. Long polls count, so beyond Ray's
default of 1,000 further calls would block forever.
"""
_RETRY_S: Seconds = 0.2
_HAND_OVER_S: Seconds = 60.0
"""Maximum seconds to wait until an older scheduler's queue is empty; new calls are held back
meanwhile.
"""
_EVERY_S: Seconds = 0.1
_MOST = 30
"""Maximum number of concurrent calls for the scheduler's address, for example while it waits for
Redis.
"""


def get_scheduler(config: AppConfig) -> ActorHandle:
    """Return the application's scheduler actor; start it if it does not run.

    It may be called from many processes at once. The handle stays valid when the actor restarts.
    """
    return get_detached(SchedulerActor, config.scheduler_name, config, _MAX_CONCURRENCY)


async def get_current_scheduler(config: AppConfig) -> ActorHandle:
    """Return the application's scheduler actor; replace an actor of an older version.

    The old one saves its state and is killed; the new one loads it. A caller of an older version,
    such as a draining replica of the last deployment, uses the newer scheduler as it is. Draining
    ingresses of the old release only use the old scheduler, which therefore stays while it has
    waiting inferences and replicas to run them, at most for `_HAND_OVER_S`.
    """
    while True:
        scheduler = get_scheduler(config)
        try:
            running = await scheduler.version.remote()
            if not is_older(running):
                return scheduler
            log_event(logger, logging.INFO, "scheduler.replaced", version=running, by=__version__)
            await _hand_over(scheduler)
            await scheduler.retire.remote()
            ray.kill(scheduler, no_restart=True)
        except RayActorError:
            # The actor restarts or was replaced; an actor of an older release dies at once.
            await asyncio.sleep(_RETRY_S)


async def _hand_over(scheduler: ActorHandle) -> None:
    """Wait until an older scheduler has no waiting inference that its own replicas could run."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _HAND_OVER_S
    while loop.time() < deadline:
        status: dict[str, Any] = await scheduler.status.remote()
        leased_to = [r for r in status.get("replicas", {}).values() if not r.get("draining")]
        if not (status.get("waiting") and leased_to):
            return
        await asyncio.sleep(_RETRY_S)


def end_scheduler(name: str, namespace: str) -> bool:
    """Save and end the scheduler actor and its embedded Redis; return whether it existed.

    Args:
        name: Name of the actor, see `AppConfig.scheduler_name`.
        namespace: Ray namespace of the actor.
    """
    return end_detached(name, namespace, "scheduler.killed_unsaved")


class SchedulerLink:
    """Connection to a scheduler, which is reopened as soon as Ray has a new scheduler.

    The first call connects.

    Args:
        scheduler: Handle of the actor; its `link` returns once it leads.
        keyring: Receives the key of each scheduler that is found.
        dial: Opens a connection to an address and a process name.
        on_offer: Called with the address of each scheduler after connecting to it; may be None.
    """

    def __init__(
        self,
        scheduler: Any,
        keyring: Keyring,
        dial: Callable[[str, str], Awaitable[Link]],
        on_offer: Callable[[Offer], None] | None = None,
    ) -> None:
        self._on_offer = on_offer
        self._scheduler = scheduler
        self._keyring = keyring
        self._dial = dial
        self._link: Link | None = None
        self._offer: Offer | None = None
        """Address and key of the scheduler that the current connection reaches."""
        self._is_superseded = False
        """Whether the connected scheduler has reported that another scheduler leads."""
        self._search: asyncio.Task[Link] | None = None
        self._failures = 0

    async def call(self, method: str, *arguments: Any) -> Any:
        """Return the answer of a scheduler's method; wait while there is no scheduler.

        Raises:
            ConnectionLost: If the connection is lost meanwhile, or the actor has ended for good;
                the call may have been executed.
            JustitiaError: The errors of the method, or the reason why the scheduler cannot lead.
        """
        link = self._link
        if link is None or link.is_lost or self._is_superseded:
            link = await self.connected()
        try:
            return await link.call(method, *arguments)
        except SchedulerSuperseded:
            # A process that Ray considered dead may still be alive and connected.
            self._is_superseded |= link is self._link
            raise

    async def connected(self) -> Link:
        """Return an open connection to the scheduler, waiting for one if needed."""
        if self._search is None or self._search.done():
            self._search = asyncio.create_task(self._connect_to_leader())
        return await asyncio.shield(self._search)

    async def close(self) -> None:
        if self._search is not None:
            self._search.cancel()
        if self._link is not None:
            await self._link.close()

    async def _connect_to_leader(self) -> Link:
        while True:
            offer, last = await self._find_offer(), self._link
            self._is_superseded = False
            if offer == self._offer and last is not None and not last.is_lost:
                return last
            self._keyring.add(offer.key)
            try:
                self._link = await self._dial(offer.address, offer.target)
            except ConnectionLost as error:
                self._note_unreachable(error)
                await asyncio.sleep(_RETRY_S)
            else:
                self._failures, self._offer = 0, offer
                if self._on_offer is not None:
                    self._on_offer(offer)
                if last is not None:
                    await last.close()
                return self._link

    def _note_unreachable(self, error: ConnectionLost) -> None:
        """Log an unreachable scheduler port, but only the 1st, 2nd, 4th time and so on."""
        self._failures += 1
        if is_logged(self._failures):
            log_event(logger, logging.WARNING, "scheduler.unreachable", reason=str(error))

    async def _find_offer(self) -> Offer:
        """Ask the actor for the scheduler's address and key until it answers.

        Raises:
            ConnectionLost: If the actor has ended for good.
            JustitiaError: The reason why the scheduler cannot lead.
        """
        found: asyncio.Future[Offer] = asyncio.get_running_loop().create_future()
        questions: set[asyncio.Task[None]] = set()
        try:
            while True:
                if len(questions) < _MOST:
                    question = asyncio.create_task(self._request_offer(found))
                    questions.add(question)
                    question.add_done_callback(questions.discard)
                await asyncio.wait({found}, timeout=_EVERY_S)
                if found.done():
                    return found.result()
        finally:
            for question in questions:
                question.cancel()

    async def _request_offer(self, found: "asyncio.Future[Offer]") -> None:
        try:
            offer: Offer = await self._scheduler.link.remote()
        except ActorDiedError as error:
            _fail_future(found, ConnectionLost(f"the scheduler has ended: {error}"))
        except RayActorError:
            return  # the actor is restarting
        except RayTaskError as error:
            known = isinstance(error.cause, JustitiaError)
            _fail_future(found, error.cause if known else RemoteFailure(str(error)))
        except RayError as error:
            _fail_future(found, ConnectionLost(str(error)))
        else:
            if not found.done():
                found.set_result(offer)


def _fail_future(found: "asyncio.Future[Offer]", error: Exception) -> None:
    if not found.done():
        found.set_exception(error)
