"""Messages to the quota accounts: the reservations in them, and what survives an outage."""

import asyncio
from dataclasses import replace
from unittest import mock

import pytest

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Refusal
from justitia_ray.serve.scheduler import claim_exchange
from justitia_ray.serve.scheduler.claims import Claim
from justitia_ray.serve.scheduler.quota_gate import QuotaGate
from tests.eventually import eventually
from tests.unit.serve.scheduler.services import Services, arrival_of
from tests.unit.serve.scheduler.test_quota_gate import Accounts, accounts, services
from tests.unit.serve.scheduler.test_quota_in_flight import _call_of, _Fleet

__all__ = ["accounts", "services"]  # fixtures

pytestmark = pytest.mark.asyncio


async def test_quota_message_is_built_from_changed_reservations_only(
    services: Services, accounts: Accounts
) -> None:
    """Thousands of reservations are open, and every inference causes a message."""
    fleet = await _Fleet.start_serving(services, accounts, limit=10**6)
    with mock.patch.object(claim_exchange, "_REPORT_INTERVAL_S", 1_000.0):
        await fleet.submit_items(
            arrival_of("a"), *(_call_of(f"q{k}", "a", 5, 15) for k in range(100))
        )
        await fleet.wait_until_decided(100)
        await fleet.submit_items(_call_of("first", "a", 5, 15))
        # The previous message has reported these hundred reservations.
        await fleet.wait_until_decided(101)
        looks = _read_claims(fleet.service.term.gate)
        for k in range(10):
            await fleet.submit_items(_call_of(f"p{k}", "a", 5, 15))
            await fleet.wait_until_decided(102)
            fleet.end_inference(f"p{k}", 5, 15)
        await fleet.submit_items(_call_of("last", "a", 5, 15))
        await eventually(lambda: "last" in fleet.state.inferences, "it is let in")

    assert 10 <= len(looks) <= 40
    assert 10**6 - 112 * 20 == accounts.remaining_of()
    assert 102 + 1 == len(fleet.service.term.gate.book.claims)


async def test_repeating_waiting_quota_reservations_skips_running_inferences(
    services: Services, accounts: Accounts
) -> None:
    fleet = await _Fleet.start_serving(services, accounts)
    with mock.patch.object(claim_exchange, "_REPORT_INTERVAL_S", 1_000.0):
        await fleet.submit_items(
            arrival_of("a"), *(_call_of(f"q{k}", "a", 5, 90, likely=5) for k in range(30))
        )
        gate = fleet.service.term.gate
        await eventually(lambda: len(gate.book.waiting.get("a", ())) == 29, "the others wait")
        looks = _read_claims(gate)
        number = gate.book.exchanges
        await eventually(lambda: gate.book.exchanges >= number + 3, "they are asked for")
        exchanges, found = gate.book.exchanges - number, len(looks)
        fleet.end_inference("q0", 5, 5)
        await eventually(lambda: "q1" in fleet.state.inferences, "the first of them is let in")

    assert found <= 16 * (exchanges + 1)
    assert ["q1"] == list(fleet.state.inferences)


async def test_usage_of_running_inferences_is_reported_within_a_second(
    services: Services, accounts: Accounts
) -> None:
    fleet = await _Fleet.start_serving(services, accounts, limit=10**6)
    with mock.patch.object(claim_exchange, "_REPORT_INTERVAL_S", 0.1):
        await fleet.submit_items(arrival_of("a"), _call_of("q", "a", 5, 15))
        await fleet.wait_until_decided(1)
        told = _read_claims(fleet.service.term.gate)
        await eventually(lambda: told.count("a#q") >= 3, "it is looked at again and again")


async def test_resubmitted_inference_reserves_its_expected_quota_usage(
    services: Services, accounts: Accounts
) -> None:
    """The first run has ended: both runs are charged, and the call counts once."""
    fleet = await _Fleet.start_serving(services, accounts, limit=1_000)
    first = _call_of("q", "a", 5, 15)
    await fleet.submit_items(arrival_of("a"), first)
    await fleet.wait_until_decided(1)
    fleet.end_inference("q", 5, 15)
    await fleet.submit_items(replace(first, request_id="q+", resubmitted=True))
    await eventually(lambda: "q+" in fleet.state.inferences, "it is let in")
    claimed = accounts.remaining_of()
    fleet.end_inference("q+", 5, 10)
    await fleet.wait_for_remaining(accounts, 1_000 - 20 - 15)

    assert 1_000 - 20 - 20 == claimed


async def test_resubmitted_inference_counts_once_for_the_quota(
    services: Services, accounts: Accounts
) -> None:
    fleet = await _Fleet.start_serving(services, accounts, limit=10, unit="inferences")
    first = _call_of("q", "a", 5, 15)
    await fleet.submit_items(arrival_of("a"), first)
    await fleet.wait_until_decided(1)
    fleet.end_inference("q", 5, 15)
    await fleet.submit_items(replace(first, request_id="q+", resubmitted=True))
    await eventually(lambda: "q+" in fleet.state.inferences, "it runs")
    fleet.end_inference("q+", 5, 15)
    gate = fleet.service.term.gate
    await eventually(lambda: "a#q" not in gate.book.claims, "its end is told")
    await fleet.wait_for_remaining(accounts, 9)


async def test_inferences_that_end_just_before_a_quota_change_are_charged(
    services: Services, accounts: Accounts
) -> None:
    fleet = await _Fleet.start_serving(services, accounts, limit=1_000)
    await fleet.submit_items(arrival_of("a"), _call_of("q", "a", 5, 15))
    await fleet.wait_until_decided(1)
    fleet.end_inference("q", 5, 15)
    quota = {"unit": "tokens", "limit": 2_000, "per": "minute"}
    await fleet.service.configure({"tenants": {"*": {"quotas": [quota]}}})

    gate = fleet.service.term.gate
    await eventually(lambda: "a#q" not in gate.book.claims, "its end is told")
    await fleet.wait_for_remaining(accounts, 1_980)


async def test_ended_inferences_without_quotas_are_forgotten_in_a_quota_outage(
    services: Services, accounts: Accounts
) -> None:
    """Ended inferences with reservations are charged once the quota service is back."""
    fleet = await _Fleet.start_serving(services, accounts, limit=1_000)
    await fleet.submit_items(arrival_of("a"), _call_of("q", "a", 5, 15))
    await fleet.wait_until_decided(1)
    accounts.away = True
    await eventually(
        lambda: fleet.service.term.gate.exchange.meter.failed, "an exchange has failed"
    )
    assert fleet.state.ended is not None
    fleet.state.ended["unclaimed"] = fleet.state.inferences["q"]
    fleet.end_inference("q", 5, 15)
    await eventually(lambda: list(fleet.state.ended or ()) == ["q"], "the other is forgotten")
    accounts.away = False

    await fleet.wait_for_remaining(accounts, 980)


async def test_opening_call_is_answered_if_its_application_is_cancelled(
    services: Services, accounts: Accounts
) -> None:
    """Otherwise the caller would wait forever for its application."""
    fleet = await _Fleet.start_serving(services, accounts)
    accounts.away = True
    opening = asyncio.create_task(fleet.service.open_application(arrival_of("a")))
    gate = fleet.service.term.gate
    await eventually(lambda: gate.held_back, "it is held back")
    gate.admit_submission(ev.Resubmitted("i"))
    await fleet.service.cancel_application("a")
    answer = await asyncio.wait_for(opening, 5.0)

    assert Refusal.APPLICATION_CANCELLED == answer.refusal
    assert [] == gate._resubmitted


def _read_claims(gate: QuotaGate) -> list[str]:
    """Return a list that collects the names of the reservations read from now on."""
    looks: list[str] = []
    used_of = gate.exchange.used_of

    def note_claim(claim: Claim) -> object:
        looks.append(claim.name)
        return used_of(claim)

    gate.exchange.used_of = note_claim  # type: ignore[assignment,method-assign]
    return looks
