"""Refused callers that wait for their Retry-After find room in the queue, with little delay.

The tests simulate a service with its queue quota, its engines and thousands of obedient callers, in
virtual time.
"""

import functools
import heapq
import math
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import pytest

from justitia_ray.core.drain import (
    _MAXIMUM_TENANTS,
    DEFAULT_RATE,
    HORIZON_S,
    Drain,
    Places,
    TenantQuota,
)
from justitia_ray.units import Seconds

_BURST_AT: Seconds = 60.0
_SHORTEST_WAIT: Seconds = 0.1


@dataclass
class _Caller:
    tenant: str
    refused_at: Seconds | None = None
    retried_at: Seconds | None = None
    got_in: bool = False
    """Whether the first retry was admitted."""


@dataclass
class CallerBurst:
    """Callers that arrive at once at a service that runs at its capacity.

    Until then a steady crowd keeps it busy, so that its drain rate is measured.
    """

    seed: int
    callers: int
    limit: int
    engines: int
    service_s: Seconds
    """Mean service time in seconds; lengths are lognormal with an equal standard deviation."""
    tenants: tuple[str, ...] = ("t",)
    newcomers: float = 0.0
    """Rate of callers that arrive for the first time after the burst, relative to the service
    rate."""
    newcomers_s: Seconds = 60.0
    """Seconds for which newcomers arrive."""
    says_so: bool = True
    """Whether callers declare their retries."""
    constant_s: Seconds | None = None
    """Retry-After of all callers, in seconds; None gives each caller its own time."""
    refused: list[_Caller] = field(default_factory=list)
    freed: list[Seconds] = field(default_factory=list)
    """Times of departures since the burst."""

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._quota = TenantQuota(self.limit)
        self._waiting: deque[tuple[_Caller, bool]] = deque()
        self._running = 0
        self._now = 0.0
        self._events: list[tuple[Seconds, int, Callable[[], None]]] = []
        self._number = 0

    def run_burst(self) -> "CallerBurst":
        """Run until every caller was served or has tried twice."""
        for number in range(int(0.6 * self.limit)):
            self._schedule_arrival(
                self._rng.uniform(0, self.service_s), self._create_caller(number), steady=True
            )
        for number in range(self.callers):
            self._schedule_arrival(_BURST_AT, self._create_caller(number))
        at, rate = _BURST_AT, self.newcomers * self.engines / self.service_s
        while rate and at < _BURST_AT + self.newcomers_s:
            at += self._rng.expovariate(rate)
            self._schedule_arrival(at, self._create_caller(self._number))
        while self._events:
            self._now, _, act = heapq.heappop(self._events)
            act()
        return self

    @property
    def part_admitted_at_first_retry(self) -> float:
        """Return the fraction of refused callers that are admitted at their first retry."""
        return sum(caller.got_in for caller in self.refused) / len(self.refused)

    @property
    def median_excess_wait(self) -> float:
        """Return the median of (wait − necessary wait) / necessary wait over refused callers.

        A refused caller necessarily waits for one free place per caller that was refused before it
        and has not retried yet, and one more.
        """
        excess, waiting = [], list[Seconds]()
        for caller in self.refused:
            refused_at, retried_at = caller.refused_at, caller.retried_at
            assert refused_at is not None
            assert retried_at is not None
            while waiting and waiting[0] <= refused_at:
                heapq.heappop(waiting)
            freed = bisect_right(self.freed, refused_at) + len(waiting)
            heapq.heappush(waiting, retried_at)
            if freed < len(self.freed):
                had_to_s = self.freed[freed] - refused_at
                excess.append((retried_at - self.freed[freed]) / had_to_s)
        return median(excess)

    def _create_caller(self, number: int) -> _Caller:
        return _Caller(self.tenants[number % len(self.tenants)])

    def _schedule_event(self, when: Seconds, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, act))

    def _schedule_arrival(self, when: Seconds, caller: _Caller, *, steady: bool = False) -> None:
        self._schedule_event(when, lambda: self._handle_arrival(caller, steady))

    def _handle_arrival(self, caller: _Caller, steady: bool) -> None:
        is_retry = caller.refused_at is not None
        says_retry = is_retry and self.says_so
        is_taken = self._quota.admits(caller.tenant, self._now, is_retry=says_retry)
        if is_retry:
            caller.retried_at, caller.got_in = self._now, is_taken
        if is_taken:
            self._quota.arrive(caller.tenant)
            self._waiting.append((caller, steady))
            self._start_waiting()
        elif not is_retry:
            caller.refused_at = self._now
            self.refused.append(caller)
            self._schedule_arrival(self._now + self._retry_after(caller), caller)

    def _retry_after(self, caller: _Caller) -> Seconds:
        wait_s = self.constant_s
        if wait_s is None:
            wait_s = self._quota.next_slot(caller.tenant, self._now)
        return max(_SHORTEST_WAIT, wait_s * self._rng.uniform(0.9, 1.1))

    def _start_waiting(self) -> None:
        while self._waiting and self._running < self.engines:
            caller, steady = self._waiting.popleft()
            self._running += 1
            deviation = math.sqrt(math.log(2))
            took_s = self.service_s * self._rng.lognormvariate(-(deviation**2) / 2, deviation)
            departs = functools.partial(self._handle_departure, caller, steady)
            self._schedule_event(self._now + took_s, departs)

    def _handle_departure(self, caller: _Caller, steady: bool) -> None:
        self._running -= 1
        self._quota.depart(caller.tenant, self._now)
        if self._now >= _BURST_AT:
            self.freed.append(self._now)
        elif steady:
            self._handle_arrival(caller, steady)
        self._start_waiting()


_BURSTS = {
    "thousands": {"callers": 2_400, "limit": 200, "engines": 50, "service_s": 2.0},
    "three tenants": {
        "callers": 2_400,
        "limit": 200,
        "engines": 50,
        "service_s": 2.0,
        "tenants": ("a/x", "a/y", "b", "c"),
    },
    "hundreds": {"callers": 900, "limit": 100, "engines": 20, "service_s": 1.0},
}


@pytest.mark.parametrize("burst", _BURSTS.values(), ids=_BURSTS)
def test_nine_of_ten_refused_callers_are_admitted_at_their_first_retry(burst: dict) -> None:  # type: ignore[type-arg]
    """A client gives up after two retries, so a caller that is refused twice more is lost.

    A wait far too long would admit every caller as well, so it is compared with the necessary wait.
    """
    for seed in range(3):
        played = CallerBurst(seed, **burst).run_burst()

        assert len(played.refused) > 0.9 * burst["callers"]
        assert played.part_admitted_at_first_retry >= 0.9
        assert played.median_excess_wait <= 0.2


_OPEN = {"callers": 400, "limit": 200, "engines": 50, "service_s": 2.0}
_NEWCOMERS = {
    "half of what is served": _OPEN | {"newcomers": 0.5},
    "nearly all of it": _OPEN | {"newcomers": 0.9},
    "more": _OPEN | {"newcomers": 1.2},
    "twice as many": _OPEN | {"newcomers": 2.0, "newcomers_s": 30.0},
    "three tenants": _OPEN | {"newcomers": 1.2, "tenants": ("a/x", "b", "c")},
    "twenty places": {
        "callers": 100,
        "limit": 20,
        "engines": 8,
        "service_s": 0.8,
        "newcomers": 0.9,
    },
}


@pytest.mark.parametrize("burst", _NEWCOMERS.values(), ids=_NEWCOMERS)
def test_new_callers_do_not_take_places_reserved_for_refused_callers(burst: dict) -> None:  # type: ignore[type-arg]
    """A steady stream of newcomers must not be served before callers that waited.

    If callers do not declare their retries, the test's target fails.
    """
    played = [CallerBurst(seed, **burst).run_burst() for seed in range(5)]
    silent = CallerBurst(0, **burst, says_so=False).run_burst()

    assert median(one.part_admitted_at_first_retry for one in played) >= 0.9
    assert median(one.median_excess_wait for one in played) <= 0.2
    assert silent.part_admitted_at_first_retry < 0.7


def test_queue_place_is_reserved_for_a_refused_caller_around_its_retry_time() -> None:
    """A refused caller that never returns keeps a place in the queue empty for seconds only."""
    drain = _drain_with_departures(10.0, 30.0)
    wait_s = drain.retry_after("t", 30.0)
    late_s = 30.0 + 1.1 * wait_s

    assert Places(own_later=1) == drain.kept("t", 30.0)
    assert Places(own=1) == drain.kept("t", 30.0 + wait_s) == drain.kept("t", late_s)
    assert Places() == drain.kept("t", late_s + 1.1)


def test_each_refused_call_is_expected_to_be_retried_once() -> None:
    """After two refusals a third declared retry counts as a new call."""
    drain = _drain_with_departures(10.0, 30.0)
    waits = [drain.retry_after("t", 30.0) for _ in range(2)]
    now = 30.0 + (waits[0] + waits[1]) / 2
    before = drain.kept("t", now)
    expected = [drain.come_back("t", now) for _ in range(3)]

    assert Places(own=1, own_later=1) == before
    assert [True, True, False] == expected
    assert Places() == drain.kept("t", now) == drain.kept("t", now + 60.0)


def test_reservations_of_a_tenant_do_not_bind_other_tenants() -> None:
    """A tenant that sends requests and never retries must not keep out all other tenants."""
    drain = _drain_with_departures(10.0, 30.0)
    for _ in range(50):
        drain.retry_after("t", 30.0)
    drain.retry_after("t", 30.0, is_whole=True)
    kept = [drain.kept("other", 30.0 + after_s) for after_s in (0.0, 6.5)]

    assert [0, 0] == [places.own + places.own_later for places in kept]
    assert [0, 1] == [places.others for places in kept]


@pytest.mark.parametrize("wait_s", [1.0, 5.0, 30.0, 100.0])
def test_constant_retry_time_misses_the_target_of_admitted_first_retries(wait_s: Seconds) -> None:
    """One constant wait brings all callers back at once, or most of them far too late."""
    played = CallerBurst(0, **_BURSTS["thousands"], constant_s=wait_s).run_burst()  # type: ignore[arg-type]

    assert played.part_admitted_at_first_retry < 0.9 or played.median_excess_wait > 0.2


_LEFT = 1_000
"""Number of places in the queue that stay taken."""


def _drain_with_departures(
    rate: float, seconds: Seconds, tenant: str = "t", drain: Drain | None = None
) -> Drain:
    """Return a drain-rate meter of a tenant whose calls have ended at this rate since time 0."""
    drain = drain or Drain()
    for number in range(1, int(rate * seconds) + 1):
        drain.depart(number / rate, _LEFT, tenant, _LEFT)
    return drain


def test_each_refused_caller_gets_a_later_retry_time() -> None:
    drain = _drain_with_departures(10.0, 20.0)
    waits = [drain.retry_after("t", 20.0) for _ in range(100)]

    assert waits == sorted(set(waits))
    assert 10.0 < waits[-1] < 11.0


def test_past_retry_times_of_callers_delay_no_later_caller() -> None:
    """Callers whose retry time is past, whether they returned or not, delay no later caller."""
    drain = _drain_with_departures(10.0, 20.0)
    first = drain.retry_after("t", 20.0)
    for _ in range(50):
        drain.retry_after("t", 20.0)
    for number in range(1, 101):
        drain.depart(20.0 + number / 10, _LEFT, "t", _LEFT)

    assert first == pytest.approx(drain.retry_after("t", 30.0), rel=0.02)


def test_caller_of_a_tenant_beyond_its_share_gets_a_later_retry_time() -> None:
    waits = [
        _drain_with_departures(10.0, 20.0).retry_after("t", 20.0, shortfall=n) for n in (1, 11)
    ]

    assert waits[1] - waits[0] == pytest.approx(1.0, rel=0.2)


def test_second_retry_time_of_a_caller_has_a_more_likely_free_place() -> None:
    waits = [
        _drain_with_departures(10.0, 20.0).retry_after("t", 20.0, is_again=again)
        for again in (False, True)
    ]

    assert 1 - math.exp(-10 * waits[0]) < 0.8
    assert 0.9 < 1 - math.exp(-10 * waits[1]) < 0.95


def test_no_retry_time_is_assigned_beyond_the_horizon() -> None:
    """OpenAI's client gives up at longer waits."""
    drain = Drain()
    waits = [drain.retry_after("t", 0.0) for _ in range(1_000)]

    assert HORIZON_S == max(waits) == waits[-1]
    assert 1.0 < waits[0] * DEFAULT_RATE < 2.0


def test_drain_rate_falls_while_service_stands_still() -> None:
    """Engines that died no longer drain the queue."""
    waits = [_drain_with_departures(10.0, 20.0).retry_after("t", now) for now in (20.0, 80.0)]

    assert waits[1] > 3 * waits[0]


def test_idle_time_does_not_lower_the_drain_rate() -> None:
    """After a quiet night the first burst gets waits of the engines' known rate."""
    drain = _drain_with_departures(10.0, 20.0)
    for left in reversed(range(1_000)):
        drain.depart(20.1, left, "t", left)
    at_night = drain.retry_after("t", 20.1)
    in_the_morning = drain.retry_after("t", 36_000.0)

    assert at_night == in_the_morning


def test_tenant_with_endless_requests_does_not_lengthen_the_wait_of_others() -> None:
    alone = _drain_with_departures(10.0, 20.0).retry_after("polite", 20.0, is_whole=True)
    drain = _drain_with_departures(10.0, 20.0)
    waits = [drain.retry_after("rude/one", 20.0, is_whole=True) for _ in range(10_000)]

    assert HORIZON_S == waits[-1]
    assert 2 * alone == pytest.approx(drain.retry_after("polite", 20.0, is_whole=True))


def test_tenants_beyond_the_table_share_one_retry_entry() -> None:
    """Callers choose the names, so the table of tenants must not grow with them."""
    drain = Drain()
    for number in range(5_000):
        drain.depart(float(number), 0, f"made-up-{number}", 0)
    waits = [drain.retry_after(f"invented-{number}", 5_000.0) for number in range(10)]

    assert waits == sorted(set(waits))


def test_tenants_beyond_the_table_share_one_drain_rate() -> None:
    quota = TenantQuota(1)
    for number in range(_MAXIMUM_TENANTS + 2):
        quota.arrive(f"t{number}")
    for number in range(_MAXIMUM_TENANTS):
        quota.depart(f"t{number}", 0.0)
        quota.arrive(f"t{number}")
    last = [f"t{_MAXIMUM_TENANTS + number}" for number in range(2)]
    for second in range(1, 101):
        quota.depart(last[second % 2], float(second * 4))
        quota.arrive(last[second % 2])

    rate = quota._drain._tenant_entry("new").departures.rate(400.0)

    assert rate == pytest.approx(0.25, rel=0.2)
