"""Which application comes next: clients in the policy's order, and inside each its applications."""

import heapq
from collections.abc import Iterator

from justitia_ray.core.entities import Application
from justitia_ray.core.lazy_heap import Key, LazyHeap
from justitia_ray.core.policies.base import Policy
from justitia_ray.units import ApplicationId, ClientId, Seconds


class Queue:
    """Clients with a waiting inference. Every change is O(log N), amortised.

    A client that the policy holds back (`Policy.eligible_at`) is parked: it waits, and is never
    first.
    """

    def __init__(self) -> None:
        self._applications: dict[ApplicationId, Application] = {}
        self._members: dict[ClientId, LazyHeap] = {}
        """The waiting applications of each client."""
        self._order = LazyHeap()
        """Clients that may be granted."""
        self._parked = LazyHeap()
        """Clients held back, by the instant at which they may go on."""
        self._aside: dict[ClientId, set[ApplicationId]] = {}
        """Applications that wait and are set aside."""
        self._policy: Policy | None = None
        self._now: Seconds = 0.0

    def __len__(self) -> int:
        """Return the number of applications with a waiting inference."""
        return len(self._applications)

    def __contains__(self, application_id: ApplicationId) -> bool:
        return application_id in self._applications

    def touch(self, application: Application) -> None:
        """Put the application where its keys say now, or out if nothing of it waits."""
        assert self._policy is not None
        application_id = application.application_id
        client = self._policy.client(application)
        self._bring_back(client, application_id)
        if application.waiting:
            self._applications[application_id] = application
            members = self._members.get(client)
            if members is None:
                members = self._members[client] = LazyHeap()
            members.put(application_id, self._policy.application_key(application))
        elif application_id in self._applications:
            del self._applications[application_id]
            self._members[client].drop(application_id)
        self.touch_client(client)

    def touch_client(self, client: ClientId) -> None:
        """Put the client where its key says now; nothing happens if nothing of it waits."""
        assert self._policy is not None
        members = self._members.get(client)
        if members is None:
            return
        first = members.first()
        if first is None and client in self._aside:
            self._order.drop(client)
            return
        if first is None:
            del self._members[client]
            self._order.drop(client)
            self._parked.drop(client)
            self._policy.left(client)
            return
        eligible_at = self._policy.eligible_at(client)
        if eligible_at > self._now:
            self._parked.put(client, (eligible_at,))
            self._order.drop(client)
        else:
            self._parked.drop(client)
            self._order.put(client, self._policy.key(client, self._applications[first]))

    def first(self) -> Application | None:
        """Return the application that comes first, or None if none may be granted."""
        client = self._order.first()
        if client is None:
            return None
        application_id = self._members[client].first()
        assert application_id is not None
        return self._applications[application_id]

    def heads(self) -> Iterator[Application]:
        """Yield the first application of each client that may be granted. O(N log N)."""
        for client in self._order:
            application_id = self._members[client].first()
            assert application_id is not None
            yield self._applications[application_id]

    def in_order(self) -> Iterator[Application]:
        """Yield the applications that may be granted, in order, by their keys as they are now.

        The first k take O(k log k), however many there are. Nothing may be touched meanwhile.
        """
        assert self._policy is not None
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

    def set_aside(self, application: Application) -> None:
        """Take an application out until it is touched, to see who comes after it."""
        assert self._policy is not None
        client = self._policy.client(application)
        del self._applications[application.application_id]
        self._aside.setdefault(client, set()).add(application.application_id)
        self._members[client].drop(application.application_id)
        self.touch_client(client)

    @property
    def passes_some(self) -> bool:
        """Whether a client that waits is set aside: what is first now has passed it."""
        return bool(self._aside)

    def first_client(self) -> ClientId | None:
        """Return the client that comes first, or None if nothing may be granted."""
        return self._order.first()

    def client_waits(self, client: ClientId) -> bool:
        """Return whether an inference of the client waits."""
        return client in self._members

    def unpark(self, now: Seconds) -> None:
        """Let those go on that may by `now`."""
        self._now = now
        while (client := self._parked.first()) is not None:
            if self._parked.key(client)[0] > now:
                return
            self._parked.drop(client)
            self.touch_client(client)

    def next_eligible(self) -> Seconds | None:
        """Return when the next parked client may go on, or None."""
        client = self._parked.first()
        return None if client is None else self._parked.key(client)[0]

    def reorder(self, policy: Policy) -> None:
        """Order by another policy from now on."""
        applications = list(self._applications.values())
        self._policy = policy
        self._order, self._members, self._parked = LazyHeap(), {}, LazyHeap()
        for application in applications:
            self.touch(application)

    def _bring_back(self, client: ClientId, application_id: ApplicationId) -> None:
        aside = self._aside.get(client)
        if aside is not None:
            aside.discard(application_id)
            if not aside:
                del self._aside[client]
