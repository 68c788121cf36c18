"""Quotas in a scheduler: waiting, refusals, and messages to the accounts over restarts."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import pytest_asyncio

from justitia_ray.accounts.messages import Answer, Exchange, Verdict
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Refusal, Refuse, RefuseApplication
from justitia_ray.core.limits import LimitStanding
from justitia_ray.errors import AdmissionError
from justitia_ray.serve.accounts.service import AccountsService
from justitia_ray.serve.scheduler.service import SchedulerService
from justitia_ray.store.accounts_store import AccountsStore
from justitia_ray.units import Epoch
from tests.eventually import eventually
from tests.fake_redis import FakeSchedulerStore
from tests.unit.serve.scheduler.services import Services, arrival_of, pull_of, submission_of

pytestmark = pytest.mark.asyncio


class Accounts:
    """Fake process of the quota service that can be unreachable, or die and restart."""

    def __init__(self) -> None:
        self.away = False
        self.calls = 0
        self.answering = asyncio.Event()
        """Event that, while unset, delays the answers to recorded reservations."""
        self.answering.set()
        self.configuring = asyncio.Event()
        """Event that, while unset, delays the answer to a changed tenant tree."""
        self.configuring.set()
        self.redis = FakeSchedulerStore()
        self.service: AccountsService | None = None

    async def restart(self) -> None:
        """Restart the quota service with its stored state."""
        store = AccountsStore(None, "app")
        store._store = self.redis
        self.service = AccountsService(store, lambda reason: None, wall=lambda: 1_000_000.0)
        await self.service.begin()

    async def configure(self, tenants: Mapping[str, Any]) -> Epoch:
        epoch = await self._service_if_reachable().configure(tenants)
        await self.configuring.wait()
        return epoch

    async def exchange(self, told: Exchange) -> Answer:
        answer = await self._service_if_reachable().exchange(told)
        if told.asks:
            await self.answering.wait()
        return answer

    def remaining_of(self, tenant: str = "t") -> float:
        assert self.service is not None
        standings = self.service.book.standings(tenant, 1_000_000.0)
        return standings[0].remaining if standings else -1

    def _service_if_reachable(self) -> AccountsService:
        self.calls += 1
        if self.away or self.service is None:
            raise AdmissionError("away")
        return self.service


@pytest_asyncio.fixture
async def accounts() -> AsyncIterator[Accounts]:
    """Running process of the quota service."""
    accounts = Accounts()
    await accounts.restart()
    yield accounts
    assert accounts.service is not None
    await accounts.service.end()


@pytest_asyncio.fixture
async def services() -> AsyncIterator[Services]:
    services = Services()
    yield services
    await services.close()


async def _leader_with_quota(
    services: Services, accounts: Accounts, unit: str, limit: float, **more: Any
) -> SchedulerService:
    timeout_s = more.pop("timeout_s", 10.0)
    service = services.new_service(quota_timeout_s=timeout_s)
    service.term.gate.exchange._connect = lambda: accounts
    await service.term.begin()
    quota = {"unit": unit, "limit": limit, "per": "day", **more}
    await service.configure({"tenants": {"*": {"quotas": [quota]}}})
    return service


async def _messages_of_type(service: SchedulerService, of: type = Refuse) -> list[Any]:
    mail = await service.submit_many("i", service.term.epoch, 0, ())
    return [message for _, message in mail.messages if isinstance(message, of)]


def _inference_of(request_id: str, application_id: str, prompt: int, output: int) -> Any:
    return ev.InferenceSubmitted(
        request_id, application_id, request_id, "i", prompt, output, output
    )


def _open_names(service: SchedulerService) -> list[str]:
    return sorted(service.term.driver.core.state.applications)


async def test_scheduler_without_quotas_sends_nothing_to_the_quota_service(
    services: Services,
) -> None:
    accounts = Accounts()
    service = await services.start_leader()
    service.term.gate.exchange._connect = lambda: accounts
    await service.submit_many("i", service.term.epoch, 0, (arrival_of(), submission_of()))

    assert ["a"] == _open_names(service)
    assert 0 == accounts.calls


async def test_application_and_inference_refusals_name_the_exceeded_limit(
    services: Services, accounts: Accounts
) -> None:
    service = await _leader_with_quota(services, accounts, "applications", 1)
    items = (arrival_of("a"), arrival_of("b"), submission_of("q", "b"), ev.ApplicationClosed("b"))
    await service.submit_many("i", service.term.epoch, 0, items)
    await eventually(lambda: service.term.gate.refusals == 2, "both are refused")
    (application,) = await _messages_of_type(service, RefuseApplication)
    by_call = await service.open_application(arrival_of("c"))

    assert ["a"] == _open_names(service)
    (refused,) = await _messages_of_type(service)
    assert refused.reason == application.reason == Refusal.QUOTA_EXHAUSTED
    assert refused.limit is not None
    assert ("t", "applications", 1, 0) == (
        refused.limit.scope,
        refused.limit.unit,
        refused.limit.limit,
        refused.limit.remaining,
    )
    assert (Refusal.QUOTA_EXHAUSTED, "t") == (
        by_call.refusal,
        by_call.limit and by_call.limit.scope,
    )
    assert 0 == service.term.gate.held_back


async def test_cancellation_releases_an_unused_quota_reservation(
    services: Services, accounts: Accounts
) -> None:
    """Other callers may use the cancelled remainder at once."""
    service = await _leader_with_quota(services, accounts, "tokens", 1_000)
    await service.submit_many(
        "i", service.term.epoch, 0, (arrival_of("a"), submission_of("q", "a"))
    )
    await eventually(lambda: accounts.remaining_of() == 970, "it is claimed")
    await service.cancel_application("a")

    await eventually(lambda: accounts.remaining_of() == 1_000, "it comes back")


async def test_quota_granted_to_a_cancelled_reservation_is_returned(
    services: Services, accounts: Accounts
) -> None:
    """Quota granted to a reservation that was cancelled meanwhile must be returned."""
    service = await _leader_with_quota(services, accounts, "applications", 1)
    accounts.answering.clear()
    first = asyncio.create_task(service.open_application(arrival_of("a")))
    await eventually(lambda: accounts.remaining_of() == 0, "the first claim is booked")
    await service.cancel_application("a")
    later = [asyncio.create_task(service.open_application(arrival_of(name))) for name in ("b", "a")]
    await eventually(lambda: service.term.gate.held_back == 2, "both are held back")
    accounts.answering.set()
    await asyncio.gather(first, *later)

    assert ["b"] == _open_names(service)


@pytest.mark.parametrize("by_call", [True, False], ids=["by a call", "by its first inference"])
async def test_reopened_application_counts_once_more_for_the_quota(
    services: Services, accounts: Accounts, by_call: bool
) -> None:
    """While the last report is pending, all openings but one would otherwise be free."""
    service = await _leader_with_quota(services, accounts, "applications", 2)
    epoch, state = service.term.epoch, service.term.driver.core.state
    await service.submit_many("i", epoch, 0, (arrival_of("a"), submission_of("q", "a")))
    await eventually(lambda: _open_names(service) == ["a"], "it is open")
    await service.pull(pull_of(1, epoch))
    await service.cancel_application("a")
    ran_on = len(state.leaving)
    if by_call:
        await service.open_application(arrival_of("a"))
    else:
        await service.submit_many("i", epoch, 0, (replace(arrival_of("a"), reopens=True),))
    await eventually(lambda: not service.term.gate.held_back, "it is decided")

    assert (1, 0) == (ran_on, accounts.remaining_of())
    assert ["a"] == _open_names(service)
    assert not state.applications["a"].state.is_cancelled
    assert Refusal.QUOTA_EXHAUSTED == (await service.open_application(arrival_of("b"))).refusal


async def test_cancelled_duplicate_of_a_waiting_call_leaves_no_quota_entry(
    services: Services, accounts: Accounts
) -> None:
    """A leftover entry would wait forever and block the resubmissions of ingresses."""
    service = await _leader_with_quota(services, accounts, "inferences", 5)
    gate, epoch = service.term.gate, service.term.epoch
    accounts.answering.clear()
    call = (arrival_of("a"), submission_of("q", "a"), ev.ApplicationClosed("a"))
    for items in (call, call, (ev.InferenceCancelled("q"),)):
        await service.submit_many("i", epoch, 0, items)
    accounts.answering.set()
    await eventually(lambda: not gate.held_back, "nothing is held back")

    assert [] == _open_names(service)
    used = service.term.driver.core.state.usage.totals
    assert [1] == [of["t"].applications for of in used.values()]
    await eventually(lambda: accounts.remaining_of() == 5, "its claim comes back")


async def test_quota_reservations_survive_scheduler_and_quota_service_restarts(
    services: Services, accounts: Accounts
) -> None:
    """Scheduler and quota service die in turn; no reservation is lost or granted twice."""
    service = await _leader_with_quota(services, accounts, "applications", 2)
    for name in ("a", "b", "c"):
        await service.open_application(arrival_of(name))
    await accounts.restart()
    successor = await services.start_leader()
    successor.term.gate.exchange._connect = lambda: accounts
    await successor.configure({"tenants": service.term.driver.settings.model_dump()["tenants"]})
    again = [await successor.open_application(arrival_of(name)) for name in ("b", "a", "c", "d")]

    assert [None, None, Refusal.QUOTA_EXHAUSTED, Refusal.QUOTA_EXHAUSTED] == [
        one.refusal for one in again
    ]


async def test_inference_admitted_by_an_earlier_scheduler_stays_admitted(
    services: Services, accounts: Accounts
) -> None:
    """An ingress that received no answer resubmits with its current prediction."""
    service = await _leader_with_quota(services, accounts, "tokens", 100)
    items = [_inference_of(f"q{k}", "a", 20, 20) for k in range(2)]
    await service.submit_many("i", service.term.epoch, 0, (arrival_of("a"), *items))
    await eventually(lambda: accounts.remaining_of() == 20, "both are let in")
    successor = await services.start_leader()
    successor.term.gate.exchange._connect = lambda: accounts
    await successor.configure({"tenants": service.term.driver.settings.model_dump()["tenants"]})
    again = [
        replace(_inference_of(f"q{k}", "a", 20, 50), resubmitted=k < 2, age_s=1.0) for k in range(3)
    ]
    arrival = replace(arrival_of("a"), resubmitted=True)
    await successor.submit_many("i", successor.term.epoch, 0, (arrival, *again))
    await eventually(lambda: successor.term.gate.held_back == 0, "all are decided")

    assert ["q0", "q1"] == sorted(successor.term.driver.core.state.inferences)


@pytest.mark.parametrize(("how", "refused"), [("reject", True), ("shadow", False)])
async def test_call_is_refused_if_the_quota_service_stays_unreachable(
    services: Services, accounts: Accounts, how: str, refused: bool
) -> None:
    """A quota that only lowers priority admits the inference."""
    service = await _leader_with_quota(
        services, accounts, "applications", 5, on_exhausted=how, timeout_s=0.4
    )
    accounts.away = True
    answer = await service.open_application(arrival_of("a"))

    assert (Refusal.QUOTA_EXHAUSTED if refused else None, None) == (answer.refusal, answer.limit)
    accounts.away = False
    assert (await service.open_application(arrival_of("b"))).refusal is None
    await eventually(lambda: accounts.remaining_of() == (4 if refused else 3), "it is given back")


async def test_exceeded_deprioritising_quota_sets_the_weight_to_zero(
    services: Services, accounts: Accounts
) -> None:
    """The weight returns when another application releases its reservation."""
    service = await _leader_with_quota(
        services, accounts, "tokens", 100, on_exhausted="deprioritise"
    )
    items = (arrival_of("a"), arrival_of("b"), *(_inference_of(f"q{k}", k, 40, 20) for k in "ab"))
    await service.submit_many("i", service.term.epoch, 0, items)
    known = service.term.driver.core.state.applications
    await eventually(lambda: len(service.term.driver.core.state.inferences) == 2, "both are in")
    low = {name for name, one in known.items() if one.is_deprioritised}
    await service.cancel_application("a")
    await eventually(lambda: not known["b"].is_deprioritised, "it has its weight back")

    assert {"b"} == low


async def test_resubmitted_inference_with_the_same_id_counts_once_for_the_quota(
    services: Services, accounts: Accounts
) -> None:
    """The inference was counted before it was resubmitted to the next scheduler."""
    service = await _leader_with_quota(services, accounts, "inferences", 2)
    items = [ev.InferenceSubmitted(f"q{k}", "a", f"n{k}", "i", 20, 10, 10) for k in range(3)]
    await service.submit_many("i", service.term.epoch, 0, (arrival_of("a"), *items))
    await eventually(lambda: service.term.gate.refusals == 1, "the third is refused")
    known = sorted(service.term.driver.core.state.inferences)
    await asyncio.gather(*(service.cancel_application(name) for name in ("a",)))

    assert ["q0", "q1"] == known
    assert ["q2"] == [
        one.request_id
        for one in await _messages_of_type(service)
        if one.reason is Refusal.QUOTA_EXHAUSTED
    ]
    assert 0 == accounts.remaining_of()


async def test_answers_contain_the_limits_of_the_quota_service(
    services: Services, accounts: Accounts
) -> None:
    """The headers cover all models, and only the caller's tenant and its parents."""
    service = await _leader_with_quota(services, accounts, "applications", 5)
    await service.open_application(arrival_of("a"))
    await eventually(
        lambda: any(one.remaining == 4 for one in service.term.gate.standings("t")),
        "they are told",
    )

    assert () == service.term.gate.standings("unknown")
    assert [("applications", 4)] == [
        (one["unit"], one["remaining"]) for one in service.inspector.status().quotas["t"]
    ]


async def test_status_shows_that_an_application_waits_for_the_quota_service(
    services: Services, accounts: Accounts
) -> None:
    """The owner must not be told that the application does not exist."""
    service = await _leader_with_quota(services, accounts, "applications", 1, timeout_s=7.0)
    await service.open_application(arrival_of("a"))
    await eventually(lambda: service.term.gate.standings("t"), "the standings are known")
    accounts.answering.clear()
    await service.submit_many(
        "i", service.term.epoch, 0, (arrival_of("b"), submission_of("q", "b"))
    )
    view = await service.application("b")
    accounts.answering.set()

    assert view is not None
    assert ("held", 1, "quota:t") == (view["state"], view["waiting"], view["outlook"]["reason"])
    assert "7 s" in view["outlook"]["what_would_help"]
    assert 0 < view["outlook"]["quota_comes_back_s"] <= 86_400


async def test_application_refused_by_a_quota_shows_quota_and_retry_time(
    services: Services, accounts: Accounts
) -> None:
    """The refusal is shown until the quota refills; later the application is unknown."""
    service = await _leader_with_quota(services, accounts, "applications", 1)
    await service.open_application(arrival_of("a"))
    await service.open_application(arrival_of("b"))
    view = await service.application("b")
    with mock.patch.object(asyncio.get_running_loop(), "time", return_value=1e9):
        later = await service.application("b")

    assert view is not None
    assert ("refused", "quota:t") == (view["state"], view["outlook"]["reason"])
    assert 0 < view["outlook"]["quota_comes_back_s"] <= 90_000
    assert later is None
    assert await service.application("never") is None


async def test_status_of_an_application_over_its_quota_shows_the_refill_time(
    services: Services, accounts: Accounts
) -> None:
    """The application is open, and only its next inference was refused."""
    service = await _leader_with_quota(services, accounts, "kv_token_time", 100)
    await service.open_application(arrival_of("a"))
    gate = service.term.gate
    limit = LimitStanding("t", "kv_token_time", 100, 0, 60.0, 86_400.0)
    now = asyncio.get_running_loop().time()
    gate.book.claims["a"].in_the_way = Verdict("a", limit, 60.0), now
    view = await service.application("a")
    gate.book.claims["a"].in_the_way = Verdict("a", limit, 60.0), now - 61.0
    later = await service.application("a")

    assert view is not None
    assert later is not None
    assert ("open", "quota:t") == (view["state"], view["outlook"]["reason"])
    assert 50.0 < view["outlook"]["quota_comes_back_s"] <= 60.0
    assert "quota:t" != later["outlook"]["reason"]


async def test_quotas_changed_during_another_settings_call_are_sent_next(
    services: Services, accounts: Accounts
) -> None:
    """A scheduler with stored quotas may receive new ones while the quota service starts."""
    accounts.configuring.clear()
    service = await _leader_with_quota(services, accounts, "applications", 1_000)
    await eventually(lambda: accounts.calls == 1, "the accounts are told of the first quota")
    quota = {"unit": "applications", "limit": 1, "per": "day"}
    await service.configure({"tenants": {"*": {"quotas": [quota]}}})
    accounts.configuring.set()
    await service.submit_many("i", service.term.epoch, 0, (arrival_of("a"), arrival_of("b")))
    await eventually(lambda: service.term.gate.refusals == 1, "the second is refused")

    assert ["a"] == _open_names(service)


async def test_metrics_count_quota_messages_and_waiting_reservations(
    services: Services, accounts: Accounts
) -> None:
    """The metrics show an operator that all calls wait for the quota service."""
    service = await _leader_with_quota(services, accounts, "applications", 5)
    gate = service.term.gate
    accounts.answering.clear()
    await service.submit_many("i", service.term.epoch, 0, (arrival_of("a"),))
    await eventually(lambda: gate.waiting_claims, "it asks")
    waiting = (gate.waiting_claims, gate.unopened)
    accounts.answering.set()
    await eventually(lambda: _open_names(service), "it is let in")
    answered = gate.exchange.meter.answered
    accounts.away = True
    await service.submit_many("i", service.term.epoch, 0, (arrival_of("b"),))
    await eventually(lambda: gate.exchange.meter.failed, "the accounts are away")

    assert (1, 1) == waiting
    assert 1 <= answered == len(gate.exchange.meter.take_durations())
    assert [] == gate.exchange.meter.take_durations()


class CountingDeque(deque[Any]):
    """Queue that counts its linear searches."""

    searches = 0

    def __iter__(self) -> Any:
        self.searches += 1
        return super().__iter__()


async def test_adding_a_waiting_inference_takes_no_linear_search(
    services: Services, accounts: Accounts
) -> None:
    """Linear searches of thousands of waiting inferences take seconds."""
    service = await _leader_with_quota(services, accounts, "inferences", 100)
    gate = service.term.gate
    await service.submit_many("i", service.term.epoch, 0, (arrival_of("a"),))
    await eventually(lambda: "a" in _open_names(service), "it is open")
    accounts.away = True
    gate.admit_submission(_inference_of("q0", "a", 20, 20))
    queue = gate._queues["a"] = CountingDeque(gate._queues["a"])
    queue.searches = 0
    for number in range(1, 10):
        gate.admit_submission(_inference_of(f"q{number}", "a", 20, 20))
    assert (10, 0) == (len(queue), queue.searches)

    gate.admit_submission(_inference_of("q3", "a", 20, 20))  # its batch arrived twice
    assert 10 == len(queue)
    assert queue.searches
