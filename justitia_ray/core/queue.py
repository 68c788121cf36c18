"""The order of waiting work: clients, their applications, and the inferences of each.

`Queue` holds clients and their applications, `WaitingLine` the inferences of one application; both
are sorted by `LazyHeap`, a heap whose entries can move.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from justitia_ray.core.tenants import BEYOND, SEPARATOR, beyond
from justitia_ray.units import ApplicationId, ClientId, RequestId, Seconds

if TYPE_CHECKING:
    from justitia_ray.core.entities import Application, Inference
    from justitia_ray.core.policies.base import Observer, Order

Key: TypeAlias = tuple[float, ...]
"""Sort key, smallest first. Its last element is a unique sequence number, so that no two keys are
equal.
"""

_COMPACT_ABOVE = 64


class LazyHeap:
    """A heap of names sorted by key. A change takes amortised O(log N), reading the first O(1)."""

    __slots__ = ("_heap", "_keys")

    lets_pass: ClassVar[bool] = False
    """Whether a name may be first without having the smallest key."""

    def __init__(self) -> None:
        self._keys: dict[str, Key] = {}
        self._heap: list[tuple[Key, str]] = []

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, name: str) -> bool:
        return name in self._keys

    def __iter__(self) -> Iterator[str]:
        """Yield the names in order. O(N log N)."""
        return iter(sorted(self._keys, key=self._keys.__getitem__))

    def in_order(self) -> Iterator[str]:
        """Yield the names in order. The first k cost O(k log k), plus outdated heap entries.

        The heap must not change during the iteration.
        """
        heap, keys = self._heap, self._keys
        ahead = [(heap[0], 0)] if heap else []
        seen: set[str] = set()
        while ahead:
            (key, name), at = heapq.heappop(ahead)
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heapq.heappush(ahead, (heap[child], child))
            if keys.get(name) == key and name not in seen:  # stale heap entries
                seen.add(name)
                yield name

    def key(self, name: str) -> Key:
        """Return the key of a name.

        Raises:
            KeyError: If the name is not in the heap.
        """
        return self._keys[name]

    def put(self, name: str, key: Key) -> None:
        """Insert a name, or change the key of a name."""
        if self._keys.get(name) == key:
            return
        self._keys[name] = key
        if len(self._keys) == 1:  # most clients have one application
            self._heap = [(key, name)]
            return
        heapq.heappush(self._heap, (key, name))
        if len(self._heap) > _COMPACT_ABOVE + 4 * len(self._keys):
            self._heap = [(key, name) for name, key in self._keys.items()]
            heapq.heapify(self._heap)

    def drop(self, name: str) -> None:
        """Remove a name; an unknown name is ignored."""
        self._keys.pop(name, None)

    def set_aside(self, name: str) -> None:
        """Remove a name that will soon be inserted again with the same key."""
        self.drop(name)

    def claim(self) -> str | None:
        """Return the first name in the order, whose inference is about to start.

        None: the order changed; call again. An order with overtaking charges for the overtaking
        here.
        """
        return self.first()

    def may_precede(self, name: str, first: str) -> bool:
        """Return whether a name may come before the name that `first` last returned.

        True also if only a new computation of the first name could decide.
        """
        return True

    def hide(self, path: str) -> bool:
        """Exclude the names below a tenant; return whether this order has a tenant tree."""
        return False

    def show_hidden(self) -> None:
        """Include excluded names in the order again."""

    def least(self) -> str | None:
        """Return the name with the smallest key; None if the heap is empty."""
        return LazyHeap.first(self)

    def least_value(self) -> float:
        """Return the first element of the smallest key; infinity if the heap is empty."""
        name = LazyHeap.first(self)
        return math.inf if name is None else self._keys[name][0]

    def first(self) -> str | None:
        """Return the name that is first in order, or None if the heap is empty."""
        heap, keys = self._heap, self._keys
        while heap:
            key, name = heap[0]
            if keys.get(name) == key:
                return name
            heapq.heappop(heap)
        return None


class WaitingLine:
    """The waiting inferences of one application in the policy's order. A change takes O(log N)."""

    __slots__ = ("_inferences", "_order")

    def __init__(self) -> None:
        self._inferences: dict[RequestId, Inference] = {}
        self._order = LazyHeap()

    def __len__(self) -> int:
        return len(self._inferences)

    def __iter__(self) -> Iterator[Inference]:
        """Yield the inferences in order. O(N log N)."""
        return (self._inferences[name] for name in self._order)

    def __contains__(self, inference: Inference) -> bool:
        return inference.request_id in self._inferences

    @property
    def first(self) -> Inference:
        """Return the first inference in order.

        Raises:
            IndexError: If no inference waits.
        """
        name = self._order.first()
        if name is None:
            raise IndexError("nothing waits")
        return self._inferences[name]

    def add_inference(self, inference: Inference, key: Key) -> None:
        """Insert an inference by its key; a requeued inference returns to its former position."""
        self._inferences[inference.request_id] = inference
        self._order.put(inference.request_id, key)

    def remove_inference(self, inference: Inference) -> None:
        """Remove a waiting inference.

        Raises:
            KeyError: If the inference does not wait in this line.
        """
        del self._inferences[inference.request_id]
        self._order.drop(inference.request_id)

    def values(self) -> list[Inference]:
        """Return the inferences in no particular order. O(N)."""
        return list(self._inferences.values())


class Queue:
    """Order of the clients (applications or tenants) and applications with waiting inferences.

    Every change takes amortised O(log N). A client that the policy holds back (`Order.eligible_at`)
    is *parked*: it waits and is never first. An application that cannot start now is *unscheduled*
    until the next `touch`, so that the next application becomes first.
    """

    def __init__(self) -> None:
        self._applications: dict[ApplicationId, Application] = {}
        self._members: dict[ClientId, LazyHeap] = {}
        """Waiting applications of each client (application or tenant)."""
        self._order = LazyHeap()
        """Clients (applications or tenants) that may get leases, in order."""
        self._parked = LazyHeap()
        """Clients (applications or tenants) without leases by the policy's decision, by the time at
        which that ends.
        """
        self._unscheduled: dict[ClientId, set[ApplicationId]] = {}
        self._hidden: dict[ClientId, None] = {}
        """Clients of which some tenants are excluded from this dispatch."""
        self._left_out: dict[ClientId, None] = {}
        """Clients that are excluded from this dispatch."""
        self.is_partial = False
        """Whether some waiting applications are excluded from this dispatch."""
        self._by_tier: dict[str, dict[ApplicationId, Application]] = {}
        """The waiting applications of each service tier."""
        self._stale: dict[ClientId, None] = {}
        """Clients (applications or tenants) whose sort keys may have changed since they were last
        sorted.
        """
        self._policy: Order | None = None
        self._observer: Observer | None = None
        self.now: Seconds = 0.0
        """Time of the event that is being handled."""

    def __len__(self) -> int:
        """Return the number of applications with a waiting inference."""
        return len(self._applications)

    def __contains__(self, application_id: ApplicationId) -> bool:
        return application_id in self._applications

    def touch(self, application: Application) -> None:
        """Sort an application by its current keys, or remove it if none of its inferences waits."""
        assert self._policy is not None
        application_id = application.application_id
        if not application.waiting:
            self.remove(application)
            return
        client = self._policy.client(application)
        if self._unscheduled:
            self._end_unscheduled(client, application_id)
        self._applications[application_id] = application
        self._by_tier.setdefault(application.tier, {})[application_id] = application
        members = self._members.get(client)
        if members is None:
            members = self._members[client] = self._policy.members_order(client)
        members.put(application_id, self._policy.application_key(application))
        self.touch_client(client)

    def remove(self, application: Application) -> None:
        """Remove an application, whether or not its inferences wait."""
        assert self._policy is not None
        application_id = application.application_id
        client = self._policy.client(application)
        if self._unscheduled:
            self._end_unscheduled(client, application_id)
        if self._applications.pop(application_id, None) is not None:
            del self._by_tier[application.tier][application_id]
            self._members[client].drop(application_id)
        self.touch_client(client)

    def touch_client(self, client: ClientId) -> None:
        """Record that a client's sort key may have changed; remove it without waiting work.

        The client is sorted when the first client is next requested.
        """
        assert self._policy is not None
        members = self._members.get(client)
        if members is None:
            return
        self._stale[client] = None
        if not members and client not in self._unscheduled:
            self._order.drop(client)
            self._parked.drop(client)
            del self._members[client]
            if self._observer is not None:
                self._observer.left(client)

    def _sort_marked_clients(self) -> None:
        """Sort all clients whose keys may have changed. O(1) if there are none."""
        if self._stale:
            stale, self._stale = self._stale, {}
            for client in stale:
                self._put_client(client)

    def _put_client(self, client: ClientId) -> None:
        assert self._policy is not None
        members = self._members.get(client)
        if members is None:
            return
        first = members.least()
        if first is None or client in self._left_out:
            self._order.set_aside(client)
            return
        if self._policy.holds_back:
            eligible_at = self._policy.eligible_at(client)
            if eligible_at > self.now:
                self._parked.put(client, (eligible_at,))
                self._order.drop(client)
                return
            self._parked.drop(client)
        self._order.put(client, self._policy.key(client, self._applications[first]))

    def reopen(self, client: ClientId) -> None:
        """Let the policy recreate the order of a client's applications. O(N)."""
        assert self._policy is not None
        if client in self._members:
            self._members[client] = self._policy.members_order(client)
            for application in list(self._applications.values()):
                if self._policy.client(application) == client:
                    self.touch(application)

    def first(self) -> Application | None:
        """Return the first application in order, or None if no application may start."""
        client = self.first_client()
        return None if client is None else self._first_of_client(client)

    def claim_first(self) -> Application | None:
        """Return the application to start next, or None."""
        while (client := self.first_client()) is not None:
            name = self._members[client].claim()
            if name is not None:
                return self._applications[name]
            self.touch_client(client)
        return None

    def may_precede(self, application: Application, first: Application) -> bool:
        """Return whether a waiting application may now come before the former first one.

        False is certain. True also if only a new computation of the first could decide.
        """
        assert self._policy is not None
        client = self._policy.client
        return self._order.may_precede(client(application), client(first))

    def heads(self) -> Iterator[Application]:
        """Yield the applications that may be the first of their clients. O(N log N)."""
        self._sort_marked_clients()
        for client in self._order:
            members = self._members[client]
            if members.lets_pass:
                yield from map(self._applications.__getitem__, members)
            else:
                yield self._first_of_client(client)

    def in_order(self) -> Iterator[Application]:
        """Yield the applications that may start, in the order of their current keys.

        The first k take O(k log k). The queue must not change during the iteration.
        """
        assert self._policy is not None
        self._sort_marked_clients()
        clients = self._order.in_order()
        coming = next(clients, None)
        begun: list[tuple[Key, ClientId, Application, Iterator[ApplicationId]]] = []
        while coming is not None or begun:
            if coming is not None and (not begun or self._order.key(coming) < begun[0][0]):
                client, coming = coming, next(clients, None)
                members = self._members[client].in_order()
                yield self._applications[next(members)]
            else:
                _, client, application, members = heapq.heappop(begun)
                yield application
            following = next(members, None)
            if following is not None:
                application = self._applications[following]
                key = self._policy.key(client, application)
                heapq.heappush(begun, (key, client, application, members))

    def hide(self, path: ClientId, application: Application) -> bool:
        """Exclude a tenant above an application until `show_hidden`.

        Returns:
            Whether the node is excluded; False if clients are not the top nodes of the tree.
        """
        assert self._policy is not None
        client = self._policy.client(application)
        if client == BEYOND:
            path = beyond(path)
        if client != path.partition(SEPARATOR)[0]:
            return False
        self._hidden[client] = None
        if not self._members[client].hide(path):
            self._left_out[client] = None
        self.touch_client(client)
        return True

    def show_hidden(self) -> None:
        """Include all excluded tenants and applications again."""
        self.is_partial = False
        if not self._hidden:
            return
        hidden = list(self._hidden)
        self._hidden.clear()
        self._left_out.clear()
        for client in hidden:
            if (members := self._members.get(client)) is not None:
                members.show_hidden()
                self.touch_client(client)

    def place(self, application: Application) -> tuple[Key, Key]:
        """Return the keys that sort a waiting application: of its client, and its own."""
        assert self._policy is not None
        client = self._policy.client(application)
        return self._policy.key(client, application), self._policy.application_key(application)

    def of_other_tiers(self, tiers: Collection[str]) -> list[Application]:
        """Return the applications that may start and are in none of these tiers, unsorted.

        O(number of these, including parked and hidden applications).
        """
        assert self._policy is not None
        self._sort_marked_clients()
        return [
            application
            for tier, applications in self._by_tier.items()
            if tier not in tiers
            for application in applications.values()
            if self._policy.client(application) in self._order
        ]

    def unschedule(self, application: Application) -> None:
        """Exclude an application from the order until the next `touch`."""
        assert self._policy is not None
        client = self._policy.client(application)
        del self._applications[application.application_id]
        del self._by_tier[application.tier][application.application_id]
        self._unscheduled.setdefault(client, set()).add(application.application_id)
        self._members[client].drop(application.application_id)
        self.touch_client(client)

    @property
    def passes_some(self) -> bool:
        """Return whether the next start overtakes an application that is now excluded."""
        return bool(self._unscheduled or self._hidden) or self.is_partial

    def first_client(self) -> ClientId | None:
        """Return the first client in order, or None if no client may start an inference."""
        self._sort_marked_clients()
        return self._order.first()

    def client_waits(self, client: ClientId) -> bool:
        """Return whether a client has a waiting inference."""
        return client in self._members

    def unpark(self) -> bool:
        """Let clients start again that the policy no longer holds back.

        Return whether there were any.
        """
        found = False
        while (client := self._parked.first()) is not None:
            if self._parked.key(client)[0] > self.now:
                break
            self._parked.drop(client)
            self.touch_client(client)
            found = True
        return found

    def next_eligible(self) -> Seconds | None:
        """Return the time until which the policy holds a client back, or None."""
        if self._policy is None or not self._policy.holds_back:
            return None
        self._sort_marked_clients()
        client = self._parked.first()
        return None if client is None else self._parked.key(client)[0]

    def reorder(self, policy: Order, observer: Observer | None = None) -> None:
        """Order clients and applications by another policy from now on.

        Args:
            policy: The order.
            observer: Observer that is notified when a client has no waiting inference left.
        """
        applications = list(self._applications.values())
        self._policy, self._observer, self._by_tier = policy, observer, {}
        self._order, self._members, self._parked = policy.order(), {}, LazyHeap()
        self._stale.clear()
        for application in applications:
            self.touch(application)

    def _end_unscheduled(self, client: ClientId, application_id: ApplicationId) -> None:
        """Include an excluded application in the order again."""
        unscheduled = self._unscheduled.get(client)
        if unscheduled is not None:
            unscheduled.discard(application_id)
            if not unscheduled:
                del self._unscheduled[client]

    def _first_of_client(self, client: ClientId) -> Application:
        application_id = self._members[client].first()
        assert application_id is not None
        return self._applications[application_id]
