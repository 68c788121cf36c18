"""The working set: the applications whose contexts fit into the KV memory together.

A prefix cache evicts the context used least recently. If the contexts of all agents exceed the
memory, each is evicted before its next turn and computed again. Here the context of an application
between two inferences counts as used memory for every application behind it in the order. The first
application whose inference does not fit beside the counted memory waits, and all applications
behind it wait with it: applications start, and continue between two turns, in order, as their
contexts fit. Running inferences are never stopped.

A context counts for as long as it pays to keep it, learned from the gaps of its class (`gaps`) and
from the time that replicas need for prompts (`engine_times`). If prompts are computed fast, or gaps
are long, no context counts, and no application waits.

A started application keeps the position in the order that it had at its start, its *place*, until
its context is evicted or it has received several times its charge. Otherwise each doubled charge,
and each tool gap while others are served, would put it behind applications that have no context
yet.

Whenever no inference runs, the first application in order starts.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from justitia_ray.core.clock.fair_share import Account
from justitia_ray.core.context_returns import ContextReturns
from justitia_ray.core.contexts import Context
from justitia_ray.core.entities import Application, Inference, KnownReplica
from justitia_ray.core.gaps import Gaps
from justitia_ray.core.ledger import Rank
from justitia_ray.core.prefill import NO_REUSE
from justitia_ray.core.queue import Queue
from justitia_ray.core.state import State
from justitia_ray.units import ApplicationId, KvTokenTime, Seconds, Tokens

_FILLED_FRACTION = 0.9
"""Fraction of the KV memory that contexts may fill after one more turn of each. On the recorded
sessions at 1.5 times the memory, the mean completion time is 11 % higher with 0.8, and 30 % higher
with 1.0.
"""
_REFUSAL_S: Seconds = 0.25
"""Seconds for which a refused application is not examined again while no lease ends; contexts
expire meanwhile.
"""
_FEW_CONTEXTS = 256
"""Number of idle contexts up to which a refused application is examined again whenever a lease
ends.
"""
_REFUSAL_S_PER_CONTEXT: Seconds = 2e-5
"""Seconds, per idle context, for which a refused application is not examined again when leases end.
Examining takes 1 to 2 µs a context, and so at most a tenth of the time.
"""
_DEFAULT_BREAK_EVEN_S: Seconds = 3.0
"""Longest useful tool gap in seconds for which a context is kept, used until the time of a prompt
token is known.
"""
_KEEPS_PLACE_FOR = 4
"""Service up to which a started application keeps its position in the order, as a multiple of its
unserved charge at the start.
"""

Place = tuple[Rank, int]
"""Position of an application in the order: whether it is beyond quota, its tag, its arrival
sequence.
"""


@dataclass(frozen=True, slots=True)
class _KeptPlace:
    place: Place
    until: KvTokenTime
    """Service up to which the application keeps the position from its start."""


class WorkingSet:
    """Decides whether cached contexts leave memory for the first application to start."""

    def __init__(
        self,
        state: State,
        rank: Callable[[ApplicationId], Rank],
        account: Callable[[ApplicationId], Account],
    ) -> None:
        self._state = state
        self._rank_of = rank
        self._account_of = account
        self._gaps = Gaps()
        self._returns = ContextReturns(state.counters)
        self._starts: dict[ApplicationId, _KeptPlace] = {}
        self._waiting: dict[ApplicationId, None] = {}
        """Waiting applications that have started before and have come back."""
        self.has_place = False
        """Whether the application that was admitted last keeps the position of an earlier start."""
        self._refused: tuple[Inference, int] | None = None
        """Inference that was refused last, with the value of `State.memory_releases` then."""
        self._refused_at: Seconds = 0.0
        self._stands_s: Seconds = 0.0
        """Seconds for which the last refusal is valid although leases end."""

    def admits(self, application: Application, inference: Inference) -> bool:
        """Return whether the first application may start now, if a replica has the memory.

        O(replicas) if all contexts fit; otherwise O(idle contexts), every quarter of a second and
        for each lease or application that ends, for at most a tenth of the time.
        """
        self.has_place = self._keeps_queue_position(application)
        if self.has_place:
            return True
        state = self._state
        asked = (inference, state.memory_releases)
        if self._refused is not None and self._refused[0] is inference:
            stands_s = _REFUSAL_S if self._refused == asked else self._stands_s
            if state.now < self._refused_at + stands_s:
                return False
        self._refused = None
        if not self._missing_kv_tokens(application, inference):
            return True
        self._refused, self._refused_at = asked, state.now
        contexts = 0
        for one in state.replicas.values():
            contexts += len(one.contexts)
        self._stands_s = (
            min(_REFUSAL_S, _REFUSAL_S_PER_CONTEXT * contexts) if contexts > _FEW_CONTEXTS else 0.0
        )
        return False

    def join(self, application: Application) -> None:
        """Record that an application has submitted an inference."""
        if application.application_id in self._starts:
            self._waiting[application.application_id] = None

    def start(self, application: Application) -> None:
        """Let a started application keep its position in the order."""
        name = application.application_id
        if application.waiting:
            self._waiting[name] = None
        account = self._account_of(name)
        charge = max(0, account.charged - account.attained)
        until = account.attained + _KEEPS_PLACE_FOR * charge
        place = self._rank_of(name), application.sequence
        self._starts[name] = _KeptPlace(place, until)

    def returned(self, application: Application, idle_s: Seconds) -> None:
        """Record the tool gap of an application that submits again."""
        if not application.replicas:
            return
        gap_class = application.tenant, application.application_class
        returns = self._returns
        if application.application_id in returns.open:
            returns.end(application)
        if application.reuse > NO_REUSE and idle_s < self._gaps.last_kept_s.get(gap_class, 0.0):
            returns.begin(application)
        self._gaps.add(gap_class, idle_s, has_returned=True)

    def ended(self, application: Application) -> None:
        """Forget an ended application; record the tool gap of an idle one first."""
        name = application.application_id
        self._starts.pop(name, None)
        self._waiting.pop(name, None)
        if name in self._returns.open:
            self._returns.end(application)
        if application.idle_since is not None and application.replicas:
            idle_s = self._state.now - application.idle_since
            gap_class = application.tenant, application.application_class
            self._gaps.add(gap_class, idle_s, has_returned=False)

    def earlier_started_applications(self, application: Application) -> list[Application]:
        """Return the waiting applications that stay first because they started earlier.

        O(started applications that wait).
        """
        place, found = self._queue_position(application), []
        for name in list(self._waiting):
            other = self._state.applications[name]
            if not other.waiting:
                del self._waiting[name]
            elif self._keeps_queue_position(other) and self._starts[name].place < place:
                found.append(other)
        return found

    def has_refused(self, inference: Inference) -> bool:
        """Return whether an inference was refused when it was first in order. O(1)."""
        return self._refused is not None and self._refused[0] is inference

    def missing_tokens(self, application: Application, inference: Inference) -> Tokens:
        """Return the KV tokens that must become free before the first application may start.

        0: it may start now, as far as contexts decide. Unlike `admits`, this changes nothing.
        O(idle contexts).
        """
        return (
            0
            if self._keeps_queue_position(application)
            else self._missing_kv_tokens(application, inference)
        )

    def counted(self, application: Application) -> Iterator[tuple[ApplicationId, Tokens]]:
        """Yield the unused contexts that an application must leave in memory, with KV tokens.

        O(idle contexts).
        """
        own, name = self._queue_position(application), application.application_id
        for replica in self._serving_replicas():
            for other, context in replica.contexts.idle():
                if (
                    context.is_live
                    and other != name
                    and self._counts_for_place(replica, other, context, own)
                ):
                    yield other, context.own_tokens

    def context_tokens(self) -> Tokens:
        """Return the KV tokens of all idle contexts that count, for any position in the order.

        O(idle contexts).
        """
        applications, tokens = self._state.applications, 0
        for replica in self._serving_replicas():
            for name, context in replica.contexts.idle():
                owner = applications.get(name)
                if context.is_live and owner and self._is_context_kept(owner, replica, context):
                    tokens += context.own_tokens
        return tokens

    def started_and_waiting(self, queue: Queue) -> tuple[int, int]:
        """Return the number of started applications, and of applications waiting for their start.

        O(started applications).
        """
        names = [name for name, _, _ in self.kept_queue_positions()]
        return len(names), len(queue) - sum(name in queue for name in names)

    @property
    def room(self) -> Tokens:
        """Return the KV tokens that leases and cached contexts may use together."""
        return self._usable_context_tokens(self._serving_replicas())

    def kept_queue_positions(self) -> Iterator[tuple[ApplicationId, Place, KvTokenTime]]:
        """Yield started applications, the positions they keep, and the service allowed there."""
        applications = self._state.applications
        for name, start in self._starts.items():
            if self._keeps_queue_position(applications[name]):
                yield name, start.place, start.until - self._account_of(name).attained

    def kept_s(self, application: Application, replica: KnownReplica) -> Seconds:
        """Return the seconds for which a context is kept after its last use.

        0 if no prompt will continue it.
        """
        is_closed = not (application.state.takes_inferences or application.waiting)
        if application.reuse <= NO_REUSE or is_closed:
            return 0.0
        gap_class = application.tenant, application.application_class
        return self._gaps.kept_s(gap_class, self._break_even_s(replica))

    def _keeps_queue_position(self, application: Application) -> bool:
        """Return whether an application has started and its context is still cached."""
        name = application.application_id
        start = self._starts.get(name)
        if start is None or self._account_of(name).attained > start.until:
            return False
        if application.in_flight:
            return True
        replicas = self._state.replicas
        return any(
            context.tokens > 0
            for name in application.replicas
            if name in replicas
            for context in replicas[name].contexts.of(application.application_id)
        )

    def _missing_kv_tokens(self, application: Application, inference: Inference) -> Tokens:
        """Return the KV tokens that an inference lacks beside leases and cached contexts.

        0 if no context counts, and if a replica has no prefix cache: contexts take no memory there.
        If leases alone leave too little memory, the inference is refused by `placement`.
        """
        replicas = self._serving_replicas()
        most = 0
        for one in replicas:
            most += one.contexts.live_tokens
        if not most or not _contexts_may_delay_start(replicas):
            return 0
        excess = self._excess_tokens(inference, replicas)
        if excess + most <= 0:
            return 0
        counted = 0
        for _, tokens in self.counted(application):
            counted += tokens
        return max(0, excess + counted) if counted else 0

    def _serving_replicas(self) -> list[KnownReplica]:
        return [one for one in self._state.replicas.values() if not one.draining]

    def _usable_context_tokens(self, replicas: Iterable[KnownReplica]) -> Tokens:
        """Return the KV tokens that contexts may use, so that each can grow by another turn."""
        memory = sum(one.capacity.cache_tokens for one in replicas)
        return int(_FILLED_FRACTION * memory / self._state.context_growth.factor)

    def _excess_tokens(self, inference: Inference, replicas: Sequence[KnownReplica]) -> Tokens:
        """Return the KV tokens by which leases and an inference exceed the memory."""
        excess = sum(one.leases.full_tokens for one in replicas) - self._usable_context_tokens(
            replicas
        )
        if inference.shares:
            return excess + min(one.footprint_beside(inference).full_tokens for one in replicas)
        return excess + inference.expected_footprint().full_tokens

    def _counts_for_place(
        self, replica: KnownReplica, name: ApplicationId, context: Context, own: Place
    ) -> bool:
        """Return whether an application at a position must leave another's context in memory."""
        other = self._state.applications.get(name)
        if other is None or not self._is_context_kept(other, replica, context):
            return False
        if self._queue_position(other) < own:
            return True
        return self._keeps_queue_position(other) and self._starts[name].place < own

    def _is_context_kept(self, owner: Application, replica: KnownReplica, context: Context) -> bool:
        """Return whether so little time has passed that an unused context is still kept."""
        return self._state.now < context.idle_since + self.kept_s(owner, replica)

    def _break_even_s(self, replica: KnownReplica) -> Seconds:
        """Return the seconds that a replica needs to compute prompts that fill its memory."""
        token_s = self._state.engine_times.token_s
        return _DEFAULT_BREAK_EVEN_S if token_s is None else token_s * replica.capacity.cache_tokens

    def _queue_position(self, application: Application) -> Place:
        return self._rank_of(application.application_id), application.sequence


def _contexts_may_delay_start(replicas: Iterable[KnownReplica]) -> bool:
    """Return whether cached contexts may delay a start."""
    return any(one.leases for one in replicas) and all(
        one.capacity.caches_prefixes for one in replicas
    )
