"""When it is worth asking the core for work: whether what comes first might fit a replica.

Asking is never wrong, only slow: the core decides by the same rules.
"""

from collections.abc import Iterable, Sequence

from justitia_ray.core.entities import Inference
from justitia_ray.core.policies import Policy
from justitia_ray.sim.link import CoreLink
from justitia_ray.sim.server import Server
from justitia_ray.sim.settings import RunSettings
from justitia_ray.units import Seconds, Tokens

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
        is_exact = settings.report_interval_s == 0
        self.order_moves = is_exact and type(self._core.order.policy).served is not Policy.served
        """Whether service alone, as it is reported, may put another first."""
        self._lets_pass = is_exact and (
            options.backfill != 0 or (options.kv_share_cap < 1 and self.order_moves)
        )
        """Whether one behind the first may start at a boundary of no event, the order as it is."""
        self._engine = settings.engine
        self._waste = settings.engine.block_size - 1
        self._refused: dict[int, _Standing] = {}
        self._standing: _Standing = (None, -1)
        self._least_behind: Tokens | None = None
        """At most the shortest prompt of those that may go before what comes first, of itself."""

    def look(self) -> None:
        """Take in what comes first now, and who may go before it at a boundary of no event."""
        first = self._link.first()
        self._standing = (first, self._link.changes)
        self._least_behind = None
        if first is None:
            return
        if self._lets_pass or (self.order_moves and self._falls_back(first)):
            self._least_behind = self._link.waiting_prompts.least()

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
                and (
                    refused.get(server.index) != standing
                    or (self._lets_pass and self.watches(server))
                )
            )
        ]

    def with_reason(self, servers: Sequence[Server]) -> list[Server]:
        """Return those that are worth asking, or may be at any boundary from here on."""
        worth = self.worth_asking(servers)
        if self._least_behind is None:
            return worth
        asking = {server.index for server in worth}
        return [s for s in servers if s.index in asking or self.watches(s)]

    def watches(self, server: Server) -> bool:
        """Return whether a replica may be given something behind the first at any boundary.

        That is when service moves the order, or when time lets a later one pass without delay.
        """
        return (
            self._least_behind is not None
            and not server.swapped
            and len(server.running) < self._engine.max_num_seqs
            and server.context_tokens + len(server.running) + 1 + self._least_behind
            <= self._engine.kv_tokens
        )

    def refused(self, server: Server) -> None:
        """A replica has asked, and may have nothing more for now."""
        self._refused[server.index] = self._standing

    def time_has_come(self, servers: Iterable[Server]) -> None:
        """The instant of `next_try`: under `peak`, what was refused then may fit by now."""
        if not self._by_prompt:
            for server in servers:
                self._refused.pop(server.index, None)

    def next_try(self, server: Server, later: Seconds) -> Seconds | None:
        """Return when, from an instant on, a replica is to ask, if nothing happens before."""
        first = self._standing[0]
        if first is None or server.swapped:
            return None
        if self.is_worth_asking(server) or self.watches(server):
            return server.next_admission(later)
        if self._by_prompt or not server.running:
            return None  # room for a prompt comes with an end only
        wait = max(1, self._core.iterations_until_room(first.request_id, server.name))
        return server.next_admission(max(later, server.instant_after(wait)))

    def _falls_back(self, first: Inference) -> bool:
        """Return whether service may be on its way that puts what comes first behind others.

        A policy puts back whom it serves, and nobody else. A tenant is taken to run something.
        """
        own = self._core.state.applications[first.application_id]
        return bool(own.in_flight) or self._core.order.policy.client(own) != own.application_id
