"""Filter before the core: requests a grant only if the first waiting inference might fit.

An unnecessary request only takes time: the core decides by the same rules.
"""

import math
from collections.abc import Iterable, Sequence

from justitia_ray.core.entities import Inference
from justitia_ray.sim.core_link import CoreLink
from justitia_ray.sim.server import Server
from justitia_ray.sim.settings import RunSettings
from justitia_ray.units import Seconds, Tokens

_Standing = tuple[Inference | None, int]


class Gate:
    """Keeps simulated replicas from asking for work that the scheduler core would not grant."""

    def __init__(self, link: CoreLink, settings: RunSettings) -> None:
        self._core = link.core
        self._link = link
        options = self._core.ledger.options
        self._first_only = options.backfill == 0
        self._by_prompt = settings.engine.admission == "prompt"
        self.tries_stay = self._by_prompt
        is_exact = settings.report_interval_s == 0
        self.order_moves = is_exact and self._core.ledger.policy.moves_with_service
        self._lets_pass = is_exact and not self._first_only
        self._engine = settings.engine
        self._goes_by_room = self._by_prompt and self._first_only
        self._each = settings.engine.block_size if self._goes_by_room else 0
        self._loads: list[Tokens] = [0] * settings.replicas
        self._most_load: Tokens = 0
        self._refused: dict[int, _Standing] = {}
        self.closed: set[int] = set()
        self.standing: _Standing = (None, -1)
        self._least_behind: Tokens | None = None
        self._smallest: list[Inference] = []

    def look(self) -> None:
        """Read which inference is first in the queue now."""
        first = self._link.first()
        self.standing = (first, self._link.changes)
        self._least_behind = None
        self._smallest.clear()
        if first is None:
            return
        self._most_load = self._engine.kv_tokens
        if self._goes_by_room:
            self._most_load -= first.prompt_tokens + self._engine.block_size
        if self._lets_pass or (self.order_moves and self._order_may_change(first)):
            self._least_behind = self._link.shortest_waiting_prompt()

    def record_kv_load(self, server: Server) -> None:
        """Record how much KV memory a replica holds now."""
        self._loads[server.index] = self._kv_load(server)

    def is_worth_asking(self, server: Server) -> bool:
        """Return whether the scheduler core may grant work to a replica in its present state."""
        if self.standing[0] is None or server.index in self.closed:
            return False
        if server.is_empty:
            return True
        return (
            self._kv_load(server) <= self._most_load
            and len(server.running) < self._engine.max_num_seqs
            and not server.swapped
            and (
                self._refused.get(server.index) != self.standing
                or (self._lets_pass and self.may_overtake_on(server))
            )
        )

    def may_get_work(self, server: Server) -> bool:
        return self.is_worth_asking(server) or self.may_overtake_on(server)

    def replicas_to_ask(self, servers: Sequence[Server]) -> list[Server]:
        """Return the replicas that may get work now."""
        if self.standing[0] is None:
            return []
        if self._least_behind is not None:
            return [server for server in servers if self.may_get_work(server)]
        most = self._most_load
        roomy = [servers[index] for index, load in enumerate(self._loads) if load <= most]
        return [server for server in roomy if self.is_worth_asking(server)]

    def may_overtake_on(self, server: Server) -> bool:
        """Return whether a replica may get an inference that is not first in the queue.

        This is so when service changes the order, or when a later inference may overtake without
        delaying the first.
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
        """Record that a replica asked for work and got none."""
        self._refused[server.index] = self.standing

    def forget_refusals(self, servers: Iterable[Server]) -> None:
        """Let all replicas ask again, because the first inference may fit now.

        Called at a `next_work_request_at` or after a change.
        """
        if not self._by_prompt:
            for server in servers:
                self._refused.pop(server.index, None)

    def next_work_request_at(self, server: Server, later: Seconds) -> Seconds | None:
        """Return the next time from `later` on at which a replica asks for work by itself."""
        first = self.standing[0]
        if first is None or server.swapped or not (server.running or server.is_empty):
            return None  # An inference on its way to the replica will wake it.
        if server.index in self.closed:
            return None
        watches = self.may_overtake_on(server)
        if self.is_worth_asking(server) or (watches and (self._by_prompt or self._lets_pass)):
            return server.next_admission(later)
        if self._by_prompt:
            return None  # KV memory becomes free only when a sequence ends.
        candidates = self._may_come_first() if watches else [first]
        wait = max(1, min(self._link.iterations_until_fit(i, server) for i in candidates))
        return server.next_admission(max(later, server.end_of_iterations_s(wait)))

    def _may_come_first(self) -> list[Inference]:
        """Return the waiting inferences that may become first in the queue.

        Under `peak` a shorter prompt with a shorter output fits no later; if KV is reserved for
        each client, only inferences of the same client are compared.
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

    def _kv_load(self, server: Server) -> Tokens:
        return server.context_tokens + self._each * len(server.running)

    def _order_may_change(self, first: Inference) -> bool:
        """Return whether service that was not reported yet may change the order.

        Service moves back only the client that receives it. A tenant is assumed to have running
        inferences.
        """
        own = self._core.state.applications[first.application_id]
        return bool(own.in_flight) or self._core.ledger.policy.client(own) != own.application_id
