"""Gate before the core: whether the first inference in line might fit a replica, so asking pays.

Asking is never wrong, only slow: the core decides by the same rules.
"""

import math
from collections.abc import Iterable, Sequence

from justitia_ray.core.entities import Inference
from justitia_ray.sim.core_link import CoreLink
from justitia_ray.sim.server import Server
from justitia_ray.sim.settings import RunSettings
from justitia_ray.units import Seconds, Tokens

_Standing = tuple[Inference | None, int]
"""First inference in line, and how often the queue or a replica had changed."""


class Gate:
    """Remembers the last refused request of each replica, and decides when to ask again."""

    def __init__(self, link: CoreLink, settings: RunSettings) -> None:
        self._core = link.core
        self._link = link
        options = self._core.ledger.options
        self._first_only = options.backfill == 0 and options.kv_share_cap >= 1
        self._by_prompt = settings.engine.admission == "prompt"
        self.tries_stay = self._by_prompt
        """Whether the instant of a next try holds as long as nothing on its replica changes."""
        is_exact = settings.report_interval_s == 0
        self.order_moves = is_exact and self._core.ledger.policy.moves_with_service
        """Whether service alone, as it is reported, may put another first."""
        self._lets_pass = is_exact and (
            options.backfill != 0 or (options.kv_share_cap < 1 and self.order_moves)
        )
        """Whether one behind the first may start at a boundary of no event, the order as it is."""
        self._engine = settings.engine
        self._goes_by_room = self._by_prompt and self._first_only
        """Whether what a replica holds says if what comes first may start there."""
        self._each = settings.engine.block_size if self._goes_by_room else 0
        """Counted for each sequence: the token of the next iteration, and what blocks waste."""
        self._loads: list[Tokens] = [0] * settings.replicas
        """At most what each replica holds."""
        self._most_load: Tokens = 0
        """Above that, a replica that runs something has no room for what comes first."""
        self._refused: dict[int, _Standing] = {}
        self.closed: set[int] = set()
        """Replicas that are given nothing: not there, or to leave."""
        self.standing: _Standing = (None, -1)
        """The queue as seen last: while it stays, only replicas that change have reason to ask."""
        self._least_behind: Tokens | None = None
        """At most the shortest prompt of those that may go before what comes first, of itself."""
        self._smallest: list[Inference] = []
        """The smallest of those at the last look; found when they are asked for."""

    def look(self) -> None:
        """Note the first inference in line, and who may pass it at a boundary without event."""
        first = self._link.first()
        self.standing = (first, self._link.changes)
        self._least_behind = None
        self._smallest.clear()
        if first is None:
            return
        self._most_load = self._engine.kv_tokens
        if self._goes_by_room:
            self._most_load -= first.prompt_tokens + self._engine.block_size
        if self._lets_pass or (self.order_moves and self._falls_back(first)):
            self._least_behind = self._link.shortest_waiting_prompt()

    def note_load(self, server: Server) -> None:
        """Note the KV that a replica holds; to be called whenever that has become less."""
        self._loads[server.index] = self._load(server)

    def is_worth_asking(self, server: Server) -> bool:
        """Return whether the core may admit something to a replica, as it stands."""
        if self.standing[0] is None or server.index in self.closed:
            return False
        if server.is_empty:
            return True
        return (
            self._load(server) <= self._most_load
            and len(server.running) < self._engine.max_num_seqs
            and not server.swapped
            and (
                self._refused.get(server.index) != self.standing
                or (self._lets_pass and self.watches(server))
            )
        )

    def has_reason(self, server: Server) -> bool:
        """Return whether a replica is worth asking, or may be at any boundary from here on."""
        return self.is_worth_asking(server) or self.watches(server)

    def with_reason(self, servers: Sequence[Server]) -> list[Server]:
        """Return those, of all replicas by index, that have reason to ask."""
        if self.standing[0] is None:
            return []
        if self._least_behind is not None:
            return [server for server in servers if self.has_reason(server)]
        most = self._most_load
        roomy = [servers[index] for index, load in enumerate(self._loads) if load <= most]
        return [server for server in roomy if self.is_worth_asking(server)]

    def watches(self, server: Server) -> bool:
        """Return whether a replica may be given something behind the first at any boundary.

        That is when service moves the order, or when time lets a later one pass without delay.
        """
        return (
            self._least_behind is not None
            and server.index not in self.closed
            and not server.swapped
            and len(server.running) < self._engine.max_num_seqs
            and server.context_tokens + len(server.running) + 1 + self._least_behind
            <= self._engine.kv_tokens
        )

    def refused(self, server: Server) -> None:
        """Note that a replica has asked in vain."""
        self._refused[server.index] = self.standing

    def time_has_come(self, servers: Iterable[Server]) -> None:
        """Forget refusals at a `next_try` or a change: under `peak` they may fit now."""
        if not self._by_prompt:
            for server in servers:
                self._refused.pop(server.index, None)

    def next_try(self, server: Server, later: Seconds) -> Seconds | None:
        """Return when, from an instant on, a replica is to ask, if nothing happens before."""
        first = self.standing[0]
        if first is None or server.swapped or not (server.running or server.is_empty):
            return None  # in the last case, what is on its way will wake it
        if server.index in self.closed:
            return None
        watches = self.watches(server)
        if self.is_worth_asking(server) or (watches and (self._by_prompt or self._lets_pass)):
            return server.next_admission(later)
        if self._by_prompt:
            return None  # room for a prompt comes with an end only
        candidates = self._may_come_first() if watches else [first]
        wait = max(1, min(self._link.iterations_until_fit(i, server) for i in candidates))
        return server.next_admission(max(later, server.instant_after(wait)))

    def _may_come_first(self) -> list[Inference]:
        """Return what service alone may put first, without what fits no sooner than another.

        Under `peak` a shorter prompt with a shorter output fits no later; where KV is kept aside
        for each client, one of the same client.
        """
        if not self._smallest:
            by_size: dict[tuple[Tokens, Tokens, str], Inference] = {}
            for application in self._core.ledger.queue.heads():
                inference = application.waiting.first
                client = application.tenant if self._engine.reserved_tokens_per_client else ""
                size = (inference.prompt_tokens, inference.predicted_output_tokens, client)
                by_size[size] = inference
            shortest: dict[str, Tokens] = {}
            for (_, output_tokens, client), inference in sorted(by_size.items()):
                if output_tokens < shortest.get(client, math.inf):
                    shortest[client] = output_tokens
                    self._smallest.append(inference)
        return self._smallest

    def _load(self, server: Server) -> Tokens:
        return server.context_tokens + self._each * len(server.running)

    def _falls_back(self, first: Inference) -> bool:
        """Return whether service may be on its way that puts what comes first behind others.

        A policy puts back whom it serves, and nobody else. A tenant is taken to run something.
        """
        own = self._core.state.applications[first.application_id]
        return bool(own.in_flight) or self._core.ledger.policy.client(own) != own.application_id
