"""Outboxes: the scheduler's messages to each ingress and replica, and their open calls."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from justitia_ray.core.actions import (
    Abort,
    Action,
    EndApplication,
    EndsStored,
    ForgetApplication,
    Grant,
)
from justitia_ray.core.events import ReplicaPulled
from justitia_ray.core.state import State
from justitia_ray.protocol.mailbox import Mailbox
from justitia_ray.protocol.messages import IngressMessage, Pull, ReplicaMessage
from justitia_ray.units import ApplicationId, IngressId, ReplicaId, Seconds

_NO_HURRY_S: Seconds = 0.25


class Outbox(Mailbox[Any]):
    """Messages to one ingress or replica, and the newest call with which it waits for them.

    Args:
        last: Messages get numbers above this one: a reader that was given up and returns has read
            up to it in an earlier outbox, and would ignore lower numbers.
    """

    def __init__(self, last: int) -> None:
        super().__init__()
        self.last = last
        self.last_pull: Pull | None = None
        """Last accepted report of the replica."""
        self.failure_id = ""
        """Id of the last handled failure of the replica's engine."""
        self._told: deque[tuple[int, EndsStored]] = deque()
        """Numbered `EndsStored` messages that the ingress may not have read yet."""
        self._ends: dict[ApplicationId, list[int]] = {}
        """Numbers of the unread messages that end each application."""
        self._ended: deque[tuple[int, ApplicationId]] = deque()
        """Number and application of each message that an application has ended, in order. Withdrawn
        messages are included.
        """
        self._notified: asyncio.Event | None = None

    def put(self, message: Any) -> None:
        super().put(message)
        if isinstance(message, EndsStored):
            self._told.append((self.last, message))
        elif isinstance(message, EndApplication):
            self._ends.setdefault(message.application_id, []).append(self.last)
            self._ended.append((self.last, message.application_id))

    def take_acknowledged(self, ack: int) -> list[EndsStored]:
        """Forget messages about ended applications that the ingress has read, up to number `ack`.

        Return each `EndsStored` message that the ingress has read, once.
        """
        while self._ended and self._ended[0][0] <= ack:
            number, application_id = self._ended.popleft()
            numbers = self._ends.get(application_id, [])
            if numbers[:1] == [number]:
                del numbers[0]
                if not numbers:
                    del self._ends[application_id]
        read = []
        while self._told and self._told[0][0] <= ack:
            read.append(self._told.popleft()[1])
        return read

    def withdraw_end(self, application_id: ApplicationId) -> None:
        """Remove the unread messages about an application's end."""
        for number in self._ends.pop(application_id, ()):
            self.withdraw(number)

    def accept_pull(self, pull: Pull, *, connected: bool = False) -> ReplicaPulled | None:
        """Return the report in a replica's pull; None if the pull is ignored.

        A pull is ignored if a later pull has overtaken it, or if it is the first pull of an unknown
        or given-up replica and does not list the replica's leases.
        """
        last = self.last_pull
        if pull.progress is None if last is None else pull.number <= last.number:
            return None
        self.last_pull = pull
        self.unread_after(pull.ack)  # This call drops the messages that the replica has read.
        return ReplicaPulled(
            pull.replica_id,
            pull.capacity,
            pull.free_kv_tokens,
            pull.progress,
            pull.finished,
            pull.draining,
            pull.stalled,
            pull.hangs,
            connected,
        )

    def notify(self) -> None:
        if self._notified is not None:
            self._notified.set()

    async def wait(self, timeout_s: Seconds) -> bool:
        """Wait for a message; return False if a newer call has replaced the waiting call."""
        self.notify()
        notified = self._notified = asyncio.Event()
        if not self:
            # In Python 3.11 `wait_for` may swallow a cancellation.
            timer = asyncio.get_running_loop().call_later(timeout_s, notified.set)
            try:
                await notified.wait()
            finally:
                timer.cancel()
        if self._notified is not notified:
            return False
        self._notified = None
        return True


class Outboxes:
    """Outboxes of all ingresses and replicas that are registered in the core."""

    def __init__(self) -> None:
        self.ingresses: dict[IngressId, Outbox] = {}
        self.forgotten: set[IngressId] = set()
        """Ids of ingresses that were given up because of their silence; they learn this at their
        next call.
        """
        self.replicas: dict[ReplicaId, Outbox] = {}
        self.on_lost_replica: Callable[[ReplicaId], None] = lambda replica_id: None
        """Function that is called for every lost replica."""
        self._to_notify: dict[int, Outbox] = {}
        self._last_dropped = 0
        """Highest number of a message in an outbox that was dropped."""

    def of_ingress(self, ingress_id: IngressId) -> Outbox:
        outbox = self.ingresses.get(ingress_id)
        if outbox is None:
            outbox = self.ingresses[ingress_id] = Outbox(self._last_dropped)
        return outbox

    def of_replica(self, replica_id: ReplicaId) -> Outbox:
        outbox = self.replicas.get(replica_id)
        if outbox is None:
            outbox = self.replicas[replica_id] = Outbox(self._last_dropped)
        return outbox

    def withdraw_end(self, ingress_id: IngressId, application_id: ApplicationId) -> None:
        """Remove the unread message about an application's end, because the ingress reopens its id.

        If the ingress read the message after the answer to the opening, it would forget the new
        application.
        """
        outbox = self.ingresses.get(ingress_id)
        if outbox is not None:
            outbox.withdraw_end(application_id)

    def notify_all(self) -> None:
        for outbox in (*self.ingresses.values(), *self.replicas.values()):
            outbox.notify()

    def deliver(self, actions: Iterable[Action], state: State, quiet: Outbox | None) -> None:
        """Put the core's actions into the outboxes, and wake the calls that wait for the actions.

        Args:
            actions: Actions of the core, in order.
            state: State of the core, with its known ingresses and replicas.
            quiet: Outbox that its caller reads at once, so that outbox's waiting call is not woken.
        """
        for action in actions:
            if isinstance(action, Grant):
                self._post_to_ingress(action.ingress_id, action, state)
                self._post_to_replica(action.replica_id, action)
            elif isinstance(action, Abort):
                self._post_to_replica(action.replica_id, action)
            else:
                self._post_to_ingress(action.ingress_id, action, state)
        for outbox in self._to_notify.values():
            if outbox is not quiet:
                outbox.notify()
        self._to_notify.clear()
        ingresses, replicas = len(self.ingresses), len(self.replicas)
        if ingresses > len(state.ingresses) or replicas > len(state.replicas):
            self._drop_lost(state)

    def _post_to_ingress(
        self, ingress_id: IngressId, message: IngressMessage, state: State
    ) -> None:
        if ingress_id in state.ingresses:
            outbox = self.of_ingress(ingress_id)
            outbox.put(message)
            if isinstance(message, EndApplication | ForgetApplication | EndsStored):
                # Confirmations of stored ends are not urgent, so many may share one answer.
                asyncio.get_running_loop().call_later(_NO_HURRY_S, outbox.notify)
            else:
                self._to_notify[id(outbox)] = outbox

    def _post_to_replica(self, replica_id: ReplicaId, message: ReplicaMessage) -> None:
        outbox = self.replicas.get(replica_id)
        if outbox is not None:
            outbox.put(message)
            self._to_notify[id(outbox)] = outbox

    def _drop_lost(self, state: State) -> None:
        """Drop the outboxes of ingresses and replicas that the core has given up."""
        if len(self.ingresses) > len(state.ingresses):
            self.forgotten |= self.ingresses.keys() - state.ingresses.keys()
        for outboxes, known, on_lost in (
            (self.ingresses, state.ingresses.keys(), None),
            (self.replicas, state.replicas.keys(), self.on_lost_replica),
        ):
            if len(outboxes) > len(known):
                for name in [name for name in outboxes if name not in known]:
                    outbox = outboxes.pop(name)
                    self._last_dropped = max(self._last_dropped, outbox.last)
                    outbox.notify()
                    if on_lost is not None:
                        on_lost(name)
