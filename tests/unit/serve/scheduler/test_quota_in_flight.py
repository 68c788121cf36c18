"""Inferences in flight are reserved: a limit is exceeded by one prediction error at most."""

from collections.abc import Callable
from typing import Any

import pytest

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Refuse
from justitia_ray.core.entities import Outcome, ReplicaCapacity
from justitia_ray.serve.scheduler.service import SchedulerService
from tests.eventually import eventually
from tests.unit.serve.scheduler.services import Services, arrival_of
from tests.unit.serve.scheduler.test_quota_gate import Accounts, accounts, services

__all__ = ["accounts", "services"]  # fixtures

pytestmark = pytest.mark.asyncio


class _Fleet:
    """Scheduler with quotas of tenant `t`, and a replica that ends inferences on request."""

    def __init__(self, service: SchedulerService) -> None:
        self.service = service
        self.state = service.term.driver.core.state
        self.refused: list[Refuse] = []
        self.used = 0

    @staticmethod
    async def start_serving(
        services: Services,
        accounts: Accounts,
        limit: float = 100,
        unit: str = "tokens",
        timeout_s: float = 10.0,
        **quota: Any,
    ) -> "_Fleet":
        """Start a scheduler and a replica, with one quota for each tenant."""
        service = services.new_service(quota_timeout_s=timeout_s)
        service.term.gate.exchange._connect = lambda: accounts
        await service.term.begin()
        one = {"unit": unit, "limit": limit, "per": "minute", **quota}
        await service.configure({"tenants": {"*": {"quotas": [one]}}})
        return _Fleet(service)

    async def submit_items(self, *items: Any) -> None:
        """Submit items and read the answering messages."""
        mail = await self.service.submit_many("i", self.service.term.epoch, 0, items)
        known = {one.request_id for one in self.refused}
        self.refused += [
            message
            for _, message in mail.messages
            if isinstance(message, Refuse) and message.request_id not in known
        ]

    async def wait_until_decided(self, count: int) -> None:
        """Wait until `count` inferences have been admitted or refused."""
        gate = self.service.term.gate
        await eventually(lambda: len(self.state.inferences) + gate.refusals >= count, "decided")
        await self.submit_items()

    async def wait_for_remaining(self, accounts: Accounts, amount: float) -> None:
        await eventually(lambda: accounts.remaining_of() == amount, "the use is booked")

    def end_inference(self, request_id: str, prompt: int, output: int) -> None:
        """Finish an inference with these token counts."""
        self._pull_with_ends()
        lease_id = self.state.inferences[request_id].lease_id
        assert lease_id is not None
        self._pull_with_ends(ev.LeaseFinished(lease_id, prompt, output, Outcome.FINISHED))
        self.used += prompt + output

    def _pull_with_ends(self, *finished: ev.LeaseFinished) -> None:
        pulled = ev.ReplicaPulled("r", ReplicaCapacity(10**6), 10**6, None, finished)
        self.service.term.driver.apply(pulled)


def _call_of(
    name: str, application: str, prompt: int, most: int, likely: int | None = None, least: int = 0
) -> ev.InferenceSubmitted:
    """Return an inference whose expected output is its maximum, `most`, unless given."""
    likely = most if likely is None else likely
    return ev.InferenceSubmitted(
        name, application, name, "i", prompt, likely, most, least_output_tokens=least
    )


async def test_fan_out_of_eighty_calls_is_admitted_up_to_the_quota(
    services: Services, accounts: Accounts
) -> None:
    """Each length is known; two calls of 59 tokens exceed the limit of 100 a minute."""
    fleet = await _Fleet.start_serving(services, accounts)
    calls = [_call_of(f"q{k}", "a", 5, 54, least=54) for k in range(80)]
    await fleet.submit_items(arrival_of("a"), *calls)
    await fleet.wait_until_decided(80)

    assert ["q0"] == list(fleet.state.inferences)
    assert 79 == len(fleet.refused)
    fleet.end_inference("q0", 5, 54)
    await eventually(lambda: accounts.remaining_of() == 41, "what it used is booked")


async def test_schedulers_of_two_models_share_one_quota(
    services: Services, accounts: Accounts
) -> None:
    """Running inferences of one scheduler reserve quota at the other."""
    fleet = await _Fleet.start_serving(services, accounts)
    others = Services()
    other = await _Fleet.start_serving(others, accounts)
    other.service.term.gate.exchange._scheduler = "another"
    await fleet.submit_items(arrival_of("a"), *(_call_of(f"q{k}", "a", 5, 54) for k in range(3)))
    await fleet.wait_until_decided(3)
    await other.submit_items(arrival_of("b"), *(_call_of(f"p{k}", "b", 5, 30) for k in range(3)))
    await other.wait_until_decided(3)
    let_in = [*fleet.state.inferences, *other.state.inferences]
    await others.close()

    assert ["q0", "p0"] == let_in


async def test_idle_applications_reserve_no_quota(services: Services, accounts: Accounts) -> None:
    """An idle application reserves nothing, whatever its class is expected to use."""
    fleet = await _Fleet.start_serving(services, accounts)
    for k in range(3):
        await fleet.submit_items(arrival_of(f"a{k}", cost=10**9), _call_of(f"q{k}", f"a{k}", 5, 25))
        await fleet.wait_until_decided(1)
        fleet.end_inference(f"q{k}", 5, 25)
        await fleet.wait_for_remaining(accounts, 70 - 30 * k)
    await fleet.submit_items(arrival_of("b", cost=10**9), _call_of("small", "b", 5, 3))
    await fleet.wait_until_decided(1)
    left_beside = accounts.remaining_of()
    await fleet.submit_items(_call_of("large", "b", 5, 3))
    await fleet.wait_until_decided(2)

    assert 4 == len(fleet.state.applications)
    assert ["small"] == list(fleet.state.inferences)
    assert ["large"] == [one.request_id for one in fleet.refused]
    assert 2 == left_beside


async def test_quota_is_exceeded_by_at_most_one_misprediction(
    services: Services, accounts: Accounts
) -> None:
    """All calls are ten times as long as predicted; a running call reserves its maximum."""
    fleet = await _Fleet.start_serving(services, accounts)
    count = 40
    await fleet.submit_items(
        arrival_of("a"), *(_call_of(f"q{k}", "a", 5, 50, likely=5) for k in range(count))
    )
    while fleet.service.term.gate.held_back or fleet.state.inferences:
        await eventually(
            lambda: fleet.state.inferences or not fleet.service.term.gate.held_back, "one runs"
        )
        for name in list(fleet.state.inferences):
            fleet.end_inference(name, 5, 50)
    await fleet.submit_items()

    assert 100 < fleet.used <= 100 + 45
    assert count == len(fleet.refused) + fleet.used // 55


async def test_call_waits_while_running_calls_may_need_the_remaining_quota(
    services: Services, accounts: Accounts
) -> None:
    """The first call may generate 90 tokens and generates 5, which leaves room for the next."""
    fleet = await _Fleet.start_serving(services, accounts)
    await fleet.submit_items(
        arrival_of("a"), *(_call_of(f"q{k}", "a", 5, 90, likely=5) for k in range(2))
    )
    gate = fleet.service.term.gate
    await eventually(
        lambda: any(one.waits is not None for one in gate.book.claims.values()), "the second waits"
    )
    before = list(fleet.state.inferences)
    fleet.end_inference("q0", 5, 5)
    await eventually(lambda: list(fleet.state.inferences) == ["q1"], "the second is let in")

    assert ["q0"] == before
    assert [] == fleet.refused


async def test_call_that_waits_for_quota_is_refused_after_a_limited_time(
    services: Services, accounts: Accounts
) -> None:
    """The refusal names the limit and a short retry time."""
    fleet = await _Fleet.start_serving(services, accounts, timeout_s=0.3)
    await fleet.submit_items(
        arrival_of("a"), *(_call_of(f"q{k}", "a", 5, 90, likely=5) for k in range(3))
    )
    await fleet.wait_until_decided(3)

    assert ["q1", "q2"] == [one.request_id for one in fleet.refused]
    (limit,) = {one.limit for one in fleet.refused}
    assert limit is not None
    assert ("t", "tokens", 100, 5) == (limit.scope, limit.unit, limit.limit, limit.remaining)
    assert {5.0} == {one.retry_after_s for one in fleet.refused}


async def test_smaller_call_may_overtake_a_call_that_waits_for_quota(
    services: Services, accounts: Accounts
) -> None:
    """Closing an application must not refuse its earlier submissions."""
    fleet = await _Fleet.start_serving(services, accounts)
    await fleet.submit_items(
        arrival_of("a"),
        _call_of("first", "a", 5, 75, likely=5),
        _call_of("waits", "a", 25, 5),
        _call_of("small", "a", 5, 5),
        ev.ApplicationClosed("a"),
    )
    await eventually(lambda: len(fleet.state.inferences) == 2, "two are let in")
    running = list(fleet.state.inferences)
    fleet.end_inference("first", 5, 5)
    await eventually(lambda: "waits" in fleet.state.inferences, "the last is let in")

    assert ["first", "small"] == running
    assert [] == fleet.refused


async def test_call_cancelled_while_waiting_uses_no_quota(
    services: Services, accounts: Accounts
) -> None:
    fleet = await _Fleet.start_serving(services, accounts)
    await fleet.submit_items(
        arrival_of("a"), *(_call_of(f"q{k}", "a", 5, 90, likely=5) for k in range(2))
    )
    gate = fleet.service.term.gate
    await eventually(
        lambda: any(one.waits is not None for one in gate.book.claims.values()), "the second waits"
    )
    await fleet.submit_items(ev.InferenceCancelled("q1"))
    left = gate.held_back
    fleet.end_inference("q0", 5, 5)
    await eventually(lambda: accounts.remaining_of() == 90, "the first alone is booked")

    assert 0 == left


@pytest.mark.parametrize(
    ("least", "let_in"), [(0, ["first", "long"]), (196, ["first"])], ids=["predicted", "certain"]
)
async def test_call_predicted_above_the_quota_runs_alone(
    services: Services, accounts: Accounts, least: int, let_in: list[str]
) -> None:
    """A prediction may be wrong, but a known length above the limit can never fit."""
    fleet = await _Fleet.start_serving(services, accounts, per="second")
    await fleet.submit_items(arrival_of("a"), _call_of("first", "a", 5, 5))
    await fleet.wait_until_decided(1)
    fleet.end_inference("first", 0, 0)
    await eventually(lambda: accounts.remaining_of() == 100, "the whole limit is left")
    await fleet.submit_items(_call_of("long", "a", 5, 196, least=least))
    await fleet.wait_until_decided(1)

    assert let_in[1:] == list(fleet.state.inferences)
    assert all(one.limit is not None and one.limit.is_too_small for one in fleet.refused)
    assert [] == [one for one in fleet.refused if one.retry_after_s is not None]


async def test_inference_longer_than_predicted_extends_its_quota_reservation(
    services: Services, accounts: Accounts
) -> None:
    """The quota reserves predictions, so a longer run reserves its new expected length."""
    fleet = await _Fleet.start_serving(services, accounts, limit=1_000, reserve_quantile=0.9)
    call = ev.InferenceSubmitted("q", "a", "q", "i", 10, 10, 500, reserve_output_tokens=20)
    await fleet.submit_items(arrival_of("a"), call)
    await fleet.wait_until_decided(1)
    before = accounts.remaining_of()
    fleet._pull_with_ends()
    lease_id = fleet.state.inferences["q"].lease_id
    assert lease_id is not None
    fleet.service.term.driver.apply(
        ev.ReplicaPulled(
            "r", ReplicaCapacity(10**6), 10**6, (ev.LeaseProgress(lease_id, 10, 90, True),)
        )
    )
    fleet.service.term.gate.book.changed.set()

    assert 970 == before
    await eventually(lambda: accounts.remaining_of() == 830, "it is expected to make 160")


async def test_quota_reserves_predicted_kv_token_time_and_charges_the_actual(
    services: Services, accounts: Accounts
) -> None:
    """The first inference costs h(10, 10) = 155, which leaves no room for the second.

    The generated part is h(10, 4) = 50.
    """
    fleet = await _Fleet.start_serving(services, accounts, limit=300, unit="kv_token_time")
    await fleet.submit_items(arrival_of("a"), *(_call_of(f"q{k}", "a", 10, 10) for k in range(2)))
    await fleet.wait_until_decided(2)
    left, let_in = accounts.remaining_of(), list(fleet.state.inferences)
    fleet.end_inference("q0", 10, 4)
    await eventually(lambda: accounts.remaining_of() == 250, "the rest comes back")

    assert ["q0"] == let_in
    assert 145 == left
    assert ["q1"] == [one.request_id for one in fleet.refused]


async def test_deprioritising_quota_does_not_make_calls_wait(
    services: Services, accounts: Accounts
) -> None:
    """A quota that only lowers priority refuses nothing, so it reserves the expected usage."""
    fleet = await _Fleet.start_serving(services, accounts, on_exhausted="deprioritise")
    await fleet.submit_items(
        arrival_of("a"), *(_call_of(f"q{k}", "a", 5, 90, likely=5) for k in range(10))
    )
    await fleet.wait_until_decided(10)
    told = [fleet.state.applications["a"].is_deprioritised]
    await fleet.submit_items(_call_of("q10", "a", 5, 90, likely=5))
    await fleet.wait_until_decided(11)
    told.append(fleet.state.applications["a"].is_deprioritised)

    assert [False, True] == told


async def test_short_calls_between_two_messages_to_the_quota_service_are_metered(
    services: Services, accounts: Accounts
) -> None:
    """The calls begin and end before any usage is reported to the quota service."""
    fleet = await _Fleet.start_serving(services, accounts, limit=10_000)
    for k in range(5):
        await fleet.submit_items(arrival_of(f"a{k}"), _call_of(f"q{k}", f"a{k}", 5, 15))
        await fleet.submit_items()
        await fleet.wait_until_decided(1)
        fleet.end_inference(f"q{k}", 5, 15)
        await fleet.submit_items(ev.ApplicationClosed(f"a{k}"))

    await eventually(lambda: accounts.remaining_of() == 9_900, "all are booked")


async def test_quota_added_later_makes_reservations_for_running_inferences(
    services: Services, accounts: Accounts
) -> None:
    """An operator adds a quota while inferences run that were admitted without one."""
    service = await services.start_leader()
    service.term.gate.exchange._connect = lambda: accounts
    fleet = _Fleet(service)
    await fleet.submit_items(arrival_of("a"), *(_call_of(f"q{k}", "a", 5, 20) for k in range(2)))
    quota = {"unit": "tokens", "limit": 60, "per": "minute"}
    await service.configure({"tenants": {"*": {"quotas": [quota]}}})
    await fleet.submit_items(_call_of("q2", "a", 5, 20))
    await fleet.wait_until_decided(3)

    assert ["q2"] == [one.request_id for one in fleet.refused]


def _has_waiting_calls(fleet: _Fleet) -> Callable[[], bool]:
    return lambda: bool(fleet.service.term.gate.held_back)


async def test_thousands_of_calls_that_wait_for_quota_time_out_together(
    services: Services, accounts: Accounts
) -> None:
    """The timeout of a large fan-out must not block the scheduler."""
    fleet = await _Fleet.start_serving(services, accounts, timeout_s=3.0)
    calls = [_call_of(f"q{k}", "a", 1, 99, likely=1) for k in range(3_000)]
    await fleet.submit_items(arrival_of("a"), *calls)
    await eventually(_has_waiting_calls(fleet), "they wait")
    await fleet.wait_until_decided(3_000)

    assert len(fleet.refused) in (2_999, 3_000)  # On a slow machine, the first call times out, too.
