"""The queue in order at one moment, with the service expected before each application starts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection
from itertools import accumulate, islice
from typing import TYPE_CHECKING, NamedTuple

from justitia_ray.core.entities import Application, Inference
from justitia_ray.cost import choices_kv_token_time
from justitia_ray.units import ApplicationId, KvTokenTime, Seconds, Tokens

if TYPE_CHECKING:
    from justitia_ray.core.ledger import Ledger, Place, Rank
    from justitia_ray.core.state import State

MAXIMUM_PLACES = 2_048
"""Maximum number of waiting applications in a profile of the queue: visiting them all takes some 20
ms.
"""


class Demand(NamedTuple):
    """Expected work on the replicas: KV memory and sequences over time."""

    kv_token_time: KvTokenTime
    """Expected KV memory over time, in token·iterations."""
    tokens: Tokens
    """Expected output tokens of inferences with known lengths, over all their sequences."""
    later_kv_token_time: KvTokenTime
    """Part of the expected KV memory over time that belongs to inferences of unknown lengths."""

    def plus(self, other: Demand) -> Demand:
        return Demand(
            self.kv_token_time + other.kv_token_time,
            self.tokens + other.tokens,
            self.later_kv_token_time + other.later_kv_token_time,
        )


NOTHING = Demand(0, 0, 0)


class QueueProfile:
    """First waiting applications in order, with the service expected before each of them.

    The expected service of an application is the rest of its prediction, and at least the service
    of its waiting inferences: its later stages wait with the same tag, and so are first again. If
    an application only runs, its later stages count for the applications with larger tags. Creating
    a profile costs O(k log k) for the first k applications, and O(r log r) for the r running
    inferences; each query costs O(log k).
    """

    def __init__(self, state: State, ledger: Ledger) -> None:
        self.made_at: Seconds = state.now
        first = list(islice(ledger.queue.in_order(), MAXIMUM_PLACES))
        self._places = {one.application_id: place for place, one in enumerate(first)}
        self._keys = [_queue_order_key(ledger, one) for one in first]
        self._ahead = [NOTHING, *accumulate(map(expected_demand, first), Demand.plus)]
        self.is_whole = len(first) == len(ledger.queue)
        """Whether the profile contains the whole queue."""
        self.first: Inference | None = first[0].waiting.first if first else None
        """The first inference in order when the profile was made; None if no inference waits."""
        running = sorted(
            (ledger.rank(one.application_id), _demand_beyond_running(state, one))
            for one in _has_only_running(state)
        )
        self._running_ranks = [rank for rank, _ in running]
        self._running = [NOTHING, *accumulate((more for _, more in running), Demand.plus)]

    def waiting_before(self, application_id: ApplicationId) -> int | None:
        """Return the number of waiting applications before this one; None if it was not visited."""
        return self._places.get(application_id)

    @property
    def names(self) -> Collection[ApplicationId]:
        """Return the visited applications in order."""
        return self._places.keys()

    def waiting_before_position(self, place: Place) -> int:
        """Return the number of visited applications before a position in the order."""
        return bisect_left(self._keys, place[:2])

    def __len__(self) -> int:
        """Return the number of visited applications."""
        return len(self._keys)

    def ahead(self, place: int, rank: Rank) -> Demand:
        """Return the work expected before an application with this position and tag."""
        later = self._running[bisect_right(self._running_ranks, rank)]
        return self._ahead[place].plus(later)


def expected_remaining_service(application: Application) -> KvTokenTime:
    """Return the service that an application still needs, including its running inferences."""
    left: KvTokenTime = 0
    if application.state.takes_inferences:  # the application may submit more
        left = application.predicted_kv_token_time - application.kv_token_time
        if (prefill := application.prefill) is not None:
            left += prefill.charged - prefill.paid
    if not application.waiting:
        return max(0, left)
    return max(left, len(application.waiting) * expected_service(application.waiting.first))


def expected_demand(application: Application) -> Demand:
    """Return the expected remaining work of a waiting application."""
    expected, waiting, first = (
        expected_remaining_service(application),
        application.waiting,
        application.waiting.first,
    )
    tokens = len(waiting) * first.expected_remaining(first.output_tokens)
    return Demand(expected, tokens, expected - len(waiting) * expected_service(first))


def expected_service(inference: Inference) -> KvTokenTime:
    """Return the service that an inference is still expected to receive."""
    made = inference.output_tokens
    whole = choices_kv_token_time(
        inference.prompt_tokens, made + inference.expected_remaining(made), inference.choices
    )
    return max(0, whole - inference.attained) + inference.expected_prefill


def _has_only_running(state: State) -> list[Application]:
    names = dict.fromkeys(
        state.inferences[lease.request_id].application_id for lease in state.leases.values()
    )
    return [state.applications[name] for name in names if not state.applications[name].waiting]


def _demand_beyond_running(state: State, application: Application) -> Demand:
    """Return an application's expected work without its running inferences."""
    runs = sum(expected_service(state.inferences[name]) for name in application.in_flight)
    to_come = max(0, expected_remaining_service(application) - runs)
    return Demand(to_come, 0, to_come)


def _queue_order_key(ledger: Ledger, application: Application) -> tuple[object, ...]:
    policy = ledger.policy
    client = policy.client(application)
    return policy.key(client, application), policy.application_key(application)
