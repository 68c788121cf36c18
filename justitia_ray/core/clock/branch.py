"""A tenant node with children: GPS divides the node's own share of service among the children.

The parent's clock gives the node φ·dV, and the node's clock shares that among its children, leaves
(`tenant`) or branches, in proportion to their weights. As in a leaf this is lazy: `catch_up`
updates the node to the parent's V before a change below the node.

A node has two times: V of its own clock, by which its children are compared, and V of the parent,
by which it is compared with its siblings. While service flows one is a fixed function of the other.
Future values are computed by `to_parent_time`: the node's V reaches a level when its share has
served Σ φ_c·(min(F_c, level) − V). Past values cannot be recomputed, because charges move the tags
F_c. So when a reference server finishes an application, V of all nodes above it is stored at once:
an update first updates only those children that have finished something in the meantime.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TypeAlias

from justitia_ray.core.clock.tenant import Finished, Tenant
from justitia_ray.core.clock.virtual_clock import GpsSession, VirtualClock
from justitia_ray.core.queue import LazyHeap
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, VirtualTime

_MAXIMUM_CACHED_LEVELS = 32
"""Maximum number of cached lookups of a tenant's virtual time. An event repeats few lookups."""


class _ServiceCourse:
    """Virtual time as a function of delivered service, which is piecewise linear."""

    __slots__ = ("_legs", "_start")

    def __init__(self, start: VirtualTime, legs: list[tuple[VirtualTime, float]]) -> None:
        """Record how virtual time rises while a GPS clock delivers service.

        Args:
            start: V at the beginning.
            legs: V at the end of each section, and the active weight in it.
        """
        self._start = start
        self._legs = legs

    def served_until(self, level: VirtualTime) -> KvTokenTime:
        """Return the service that was delivered until virtual time reached a level."""
        served: KvTokenTime = 0
        begin = self._start
        for end, weight in self._legs:
            if level <= end:
                return served + weight * max(0, level - begin)
            served += weight * (end - begin)
            begin = end
        return served


class BranchClock(VirtualClock):
    """GPS clock of a tenant with children, which records how virtual time rises with service."""

    def __init__(self, virtual_time: VirtualTime = 0) -> None:
        super().__init__(virtual_time)
        self._legs: list[tuple[VirtualTime, float]] = []
        self._found: dict[VirtualTime, KvTokenTime] = {}
        """Cached amounts of service until virtual time reaches a level; cleared by each change."""

    def serve_recording_course(self, amount: KvTokenTime) -> _ServiceCourse:
        """Share service among the children, and return how virtual time rose meanwhile."""
        start, self._legs = self._virtual_time, []
        self.serve(amount)
        self._legs.append((self._virtual_time, self._active_weight))
        return _ServiceCourse(start, self._legs)

    def until(self, level: VirtualTime) -> KvTokenTime:
        """Return the service after which virtual time reaches a level without more charges.

        O(1) for a cached level, otherwise O(N log N).
        """
        served = self._found.get(level)
        if served is None:
            if len(self._found) >= _MAXIMUM_CACHED_LEVELS:
                self._found.clear()
            served = self._found[level] = self._service_until_level(level)
        return served

    def _service_until_level(self, level: VirtualTime) -> KvTokenTime:
        now = self._virtual_time
        parts = [
            one.weight * ((one.finish if one.finish < level else level) - now)
            for one in self._sessions.values()
            if one.active
        ]
        parts.sort()  # floats are summed in a fixed order, so that a restart gives the same result
        return sum(parts)

    def serve(self, amount: KvTokenTime) -> None:
        self._found.clear()
        super().serve(amount)

    def _end_departure(self, session_id: ApplicationId, session: GpsSession) -> None:
        self._legs.append((self._virtual_time, self._active_weight))
        super()._end_departure(session_id, session)

    def _schedule_departure(self, session_id: ApplicationId, session: GpsSession) -> None:
        self._found.clear()
        super()._schedule_departure(session_id, session)

    def _count_inactive(self, session: GpsSession) -> None:
        self._found.clear()
        super()._count_inactive(session)


class Branch:
    """Tenant with children, whose GPS clock divides the tenant's service among the children."""

    def __init__(
        self,
        path: ClientId,
        parent: Branch | None,
        now: VirtualTime,
        weight: float,
        looked_at: dict[ClientId, Tenant],
        inner_time: VirtualTime | None = None,
    ) -> None:
        """Create a branch without children.

        Args:
            path: Name of the node, and of its session in the parent's clock.
            parent: The node whose V drives it; None: the root.
            now: V of the parent.
            weight: Weight among the children of the parent.
            looked_at: Table in which updated leaves below it are recorded.
            inner_time: V of its own clock; that of the parent if it is new.
        """
        self.path = path
        self.name = path
        self.parent = parent
        self.up: tuple[Branch, ...] = () if parent is None else (parent, *parent.up)
        """Tenants above this one, from its parent to the topmost."""
        self.weight = weight
        self.since = now
        self.clock = BranchClock(now if inner_time is None else inner_time)
        self.children: dict[ClientId, Node] = {}
        """Children of this tenant, by the names of their GPS sessions."""
        self.live = 0
        """Number of live applications of this tenant and all tenants below it."""
        self.stale: dict[ClientId, None] = {}
        """Children whose sort keys may have changed; emptied by the policy that sorts them."""
        self._upcoming = LazyHeap()
        """Heap of children, by this tenant's virtual time at which GPS finishes the child's next
        application.
        """
        self._looked_at = looked_at

    @property
    def next_finish(self) -> VirtualTime | None:
        """Return the parent's virtual time at which the next application is finished, or None."""
        name = self._upcoming.first()
        return None if name is None else self.to_parent_time(self._upcoming.key(name)[0])

    def to_parent_time(self, level: VirtualTime) -> VirtualTime:
        """Return the parent's virtual time at which this tenant's virtual time reaches a level."""
        return self._parent_level_after(self.since, self.clock.until(level))

    def catch_up(self, now: VirtualTime, *, idle: bool) -> list[Finished]:
        """Pass on the service that this tenant has received until its parent's time `now`.

        Returns:
            The applications below that were finished in that time, with V of the parent.
        """
        since = self.since
        if now == since and not idle:
            return []
        course = self.clock.serve_recording_course(inf if idle else self.weight * (now - since))
        self.since = now
        return self._advance_past_finishes(
            lambda level: min(now, self._parent_level_after(since, course.served_until(level)))
        )

    def charge(self, child: Node, amount: KvTokenTime, sequence: int) -> None:
        self.clock.charge(child.name, amount, child.weight, sequence)

    def refund(self, child: Node, amount: KvTokenTime) -> list[Finished]:
        """Refund a charge of a child; service given in excess goes to its siblings at once.

        Returns:
            The applications of siblings that this finished.
        """
        self.clock.refund(child.name, amount)
        return self._advance_past_finishes(lambda level: self.since)

    def reweigh_all(self, weight: float) -> None:
        """Change the weight φ of this tenant; the service that it is owed stays the same."""
        self.weight = weight

    def place(self, child: Node) -> None:
        """Record when GPS finishes a child's next application; its sort key has changed."""
        finish = child.next_finish
        if finish is None:
            self._upcoming.drop(child.name)
        else:
            self._upcoming.put(child.name, (finish,))
        self.stale[child.name] = None

    def remove(self, name: ClientId) -> None:
        self.children.pop(name, None)
        self._upcoming.drop(name)
        self.stale[name] = None

    def _parent_level_after(self, since: VirtualTime, served: KvTokenTime) -> VirtualTime:
        """Return the parent's virtual time when this tenant has received `served` since `since`."""
        return since + served / self.weight if served else since

    def _advance_past_finishes(
        self, to_parent_time: Callable[[VirtualTime], VirtualTime]
    ) -> list[Finished]:
        """Update children whose next applications are finished; return these applications."""
        level, found, due = self.clock.virtual_time, [], []
        while (name := self._upcoming.first()) is not None and (
            self._upcoming.key(name)[0] <= level
        ):
            self._upcoming.drop(name)
            due.append(self.children[name])
        for child in due:
            for finished in child.catch_up(level, idle=not self.clock.is_active(child.name)):
                at = to_parent_time(finished.at)
                finished.tenant.above[finished.application_id].append(at)
                found.append(finished._replace(at=at))
            if isinstance(child, Tenant):
                self._looked_at[child.path] = child
            self.place(child)
        return found


Node: TypeAlias = Tenant | Branch
