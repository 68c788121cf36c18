"""Applications that one dispatch may grant, in order.

They are in the order of the queue until an application, a tier or a tenant node is left out, and in
the order of their keys afterwards.
"""

import heapq
from collections.abc import Collection, Iterable

from justitia_ray.core.entities import Application
from justitia_ray.core.ledger import Ledger
from justitia_ray.core.queue import Key
from justitia_ray.core.tenants import ancestors
from justitia_ray.units import ApplicationId, ClientId


class GrantCandidates:
    """Applications in the order of their grants, without those of tiers and nodes at a share."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._tiers: dict[str, None] = {}
        """Tiers that are left out."""
        self._nodes: dict[ClientId, None] = {}
        """Tenant nodes that are left out, with everything below them."""
        self._others: list[tuple[tuple[Key, Key], ApplicationId, Application]] = []
        """Applications that may be granted, by position in the order; filled when a tier or a node
        is left out for the first time.
        """
        self.is_kept_to_some = False
        """Whether only some applications may be granted, because the first in order waits for
        contexts.
        """

    @property
    def leaves_out(self) -> bool:
        """Return whether any waiting application is left out."""
        return bool(self._tiers or self._nodes or self.is_kept_to_some)

    def next(self) -> Application | None:
        """Return the first application that may be granted, or None."""
        if not self.leaves_out:
            return self._ledger.queue.claim_first()
        queue = self._ledger.queue
        while self._others:
            place, name, application = self._others[0]
            if name not in queue:
                heapq.heappop(self._others)
            elif place != (now := queue.place(application)):  # a grant has changed its position
                heapq.heapreplace(self._others, (now, name, application))
            else:
                return application
        return None

    def leave_out_tier(self, tier: str) -> None:
        """Exclude the applications of a tier until the end of this dispatch.

        The other applications are then taken by their keys, without overtaking, because the
        policy's rules of overtaking cover all applications together.
        """
        others = self._applications_but_of((tier,))
        self._tiers[tier] = None
        self._set_applications(others)

    def leave_out_node(self, node: ClientId) -> None:
        """Exclude a tenant node, with everything below it, as `leave_out_tier` does a tier."""
        others = self._applications_but_of(())
        self._nodes[node] = None
        self._set_applications(others)

    def keep_to(self, applications: Iterable[Application]) -> None:
        """Exclude all applications but these until the end of this dispatch."""
        self.is_kept_to_some = True
        self._set_applications(applications)

    def hide_first(self) -> None:
        """Exclude the application that `next` returned from the rest of this dispatch."""
        if self.leaves_out:
            heapq.heappop(self._others)

    def _applications_but_of(self, tiers: Collection[str]) -> list[Application]:
        """Return the applications that are not left out and are in none of these tiers."""
        queue = self._ledger.queue
        if not self.leaves_out:
            return queue.of_other_tiers(tiers)
        return [one for _, name, one in self._others if name in queue and one.tier not in tiers]

    def _set_applications(self, applications: Iterable[Application]) -> None:
        queue = self._ledger.queue
        queue.is_partial = True
        nodes = self._nodes
        self._others = [
            (queue.place(one), one.application_id, one)
            for one in applications
            if one.tier not in self._tiers
            and not (nodes and any(node in nodes for node in ancestors(one.tenant)))
        ]
        heapq.heapify(self._others)
