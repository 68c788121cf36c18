"""When it is worth asking the core for work: whether what comes first might fit a replica.

Asking is never wrong, only slow: the core decides by the same rules.
"""

from collections.abc import Iterable

from justitia_ray.core.entities import Inference
from justitia_ray.sim.link import CoreLink
from justitia_ray.sim.server import Server
from justitia_ray.sim.settings import RunSettings
from justitia_ray.units import Seconds

_Standing = tuple[Inference | None, int]
"""What comes first, and how often the queue or a replica had changed."""


class Gate:
    """Remembers for each replica what it asked last in vain."""

    def __init__(self, link: CoreLink, settings: RunSettings) -> None:
        self._core = link.core
        self._link = link
        options = self._core.order.options
        self._first_only = options.backfill == 0 and options.kv_share_cap >= 1
        self._by_prompt = settings.engine.admission == "prompt"
        self._engine = settings.engine
        self._waste = settings.engine.block_size - 1
        self._refused: dict[int, _Standing] = {}
        self._standing: _Standing = (None, -1)

    def look(self) -> bool:
        """Take in what comes first now; return whether anything waits."""
        self._standing = (self._link.first(), self._link.changes)
        return self._standing[0] is not None

    @property
    def standing(self) -> _Standing:
        """What was seen last: while it stays, only replicas that change have reason to ask."""
        return self._standing

    def is_worth_asking(self, server: Server) -> bool:
        """Return whether the core may admit something to a replica, as it stands."""
        return bool(self.worth_asking((server,)))

    def worth_asking(self, servers: Iterable[Server]) -> list[Server]:
        """Return those of the replicas to which the core may admit something, as they stand."""
        first = self._standing[0]
        if first is None:
            return []
        refused, standing, waste = self._refused, self._standing, self._waste
        most_seats = self._engine.max_num_seqs
        most_context = self._engine.kv_tokens - first.prompt_tokens - 1 - waste
        if not (self._by_prompt and self._first_only):
            most_context, waste = self._engine.kv_tokens, -1
        return [
            server
            for server in servers
            if not server.running
            or (
                server.context_tokens + len(server.running) * (1 + waste) <= most_context
                and len(server.running) < most_seats
                and not server.swapped
                and refused.get(server.index) != standing
            )
        ]

    def refused(self, server: Server) -> None:
        """A replica has asked, and may have nothing more for now."""
        self._refused[server.index] = self._standing

    def next_try(self, server: Server, later: Seconds) -> Seconds | None:
        """Return when, from an instant on, a replica is to ask, if nothing happens before."""
        first = self._standing[0]
        if first is None or server.swapped:
            return None
        if self.is_worth_asking(server):
            return server.next_admission(later)
        if self._by_prompt or not server.running:
            return None  # room for a prompt comes with an end only
        wait = max(1, self._core.iterations_until_room(first.request_id, server.name))
        return server.next_admission(max(later, server.instant_after(wait)))
