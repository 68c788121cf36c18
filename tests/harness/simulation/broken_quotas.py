"""Quota and usage parts with one mistake each, which the simulation must find."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from justitia_ray.core.actions import EndsStored
from justitia_ray.core.entities import Outcome
from justitia_ray.core.kept_ends import KeptEnds
from justitia_ray.core.tenants import METERED, Unit
from justitia_ray.core.usage import DAY_S, Day
from justitia_ray.serve.ingress.pending_inferences import PendingInference
from justitia_ray.serve.scheduler.claim_book import ClaimBook
from justitia_ray.serve.scheduler.claim_exchange import ClaimExchange
from justitia_ray.serve.scheduler.claims import Claim
from justitia_ray.store.schema import encode
from justitia_ray.units import ApplicationId, Epoch, RequestId
from tests.harness.simulation.accounts import WatchedAccounts
from tests.harness.simulation.parts import WatchedService
from tests.harness.simulation.plan import Fault, FaultKind, Plan, draw_quotas
from tests.harness.simulation.store import StoreClient
from tests.harness.simulation.unusable_leases import WatchedQueueClient


class AccountsThatForgetClaims(WatchedAccounts):
    """Mutant of the quota service that restores used amounts but no reservations."""

    async def begin(self) -> None:
        await super().begin()
        for term in self.book._terms.values():
            term.claims.clear()
        self.book.configure(self.book.tree, self._wall())


class _BookThatCountsNothing(ClaimBook):
    """Mutant of the quota book that releases reservations without counting the use."""

    def settle(
        self, claim: Claim, used: Mapping[Unit, float], *, when_stored: bool = False
    ) -> None:
        super().settle(claim, {}, when_stored=when_stored)


class ServiceThatCountsNothing(WatchedService):
    def watch(self, *parts: Any) -> None:
        super().watch(*parts)
        self.term.gate.book.__class__ = _BookThatCountsNothing


class _ExchangeWithoutSurvivors(ClaimExchange):
    """Mutant of the scheduler's messages to the quota service: they omit old reservations."""

    def begin(self, epoch: Epoch) -> None:
        super().begin(epoch)
        self._began_at = None


class ServiceWithoutSurvivors(WatchedService):
    def watch(self, *parts: Any) -> None:
        super().watch(*parts)
        self.term.gate.exchange.__class__ = _ExchangeWithoutSurvivors


class _BookThatReservesNothing(ClaimBook):
    """Mutant of the quota book that reserves nothing for an inference's expected use."""

    def make(self, claim: Claim) -> None:
        for unit in METERED:
            if claim.request_id is not None and unit in claim.wants:
                claim.wants[unit] = 0.0
                claim.needs = {**claim.needs, unit: 0.0}
        super().make(claim)


class ServiceThatReservesNothing(WatchedService):
    def watch(self, *parts: Any) -> None:
        super().watch(*parts)
        self.term.gate.book.__class__ = _BookThatReservesNothing


class _ExchangeThatKeepsClaims(ClaimExchange):
    """Mutant of the scheduler's messages to the quota service: no reservation is returned."""

    def used_of(self, claim: Claim) -> tuple[dict[Unit, float], bool]:
        used, is_final = super().used_of(claim)
        return used, is_final and claim.request_id is None


class ServiceThatKeepsClaims(WatchedService):
    def watch(self, *parts: Any) -> None:
        super().watch(*parts)
        self.term.gate.exchange.__class__ = _ExchangeThatKeepsClaims


class StoreThatSavesUsageApart(StoreClient):
    """Mutant of the store client that saves usage totals before the scheduler's state."""

    async def save(self, *parts: Any) -> bool:
        usage = parts[_USAGE] if len(parts) > _USAGE else None
        await self._run_after_travel(lambda: self._write_usage(usage or {}))
        return await super().save(*parts)

    def _write_usage(self, usage: Mapping[Day, Mapping[str, Any]]) -> None:
        for day, of_day in usage.items():
            encoded = {name: encode(name, record) for name, record in of_day.items()}
            self._redis.usage.setdefault(day, {}).update(encoded)


_USAGE = 6
"""Position of the usage totals among the arguments of `save`."""


class _ForgetfulEnds(KeptEnds):
    """Mutant of the list of ended inferences that forgets which of them are counted."""

    def is_counted(self, application_id: ApplicationId, request_id: RequestId) -> bool:
        return False


class ServiceThatCountsAgain(WatchedService):
    def note_lead(self) -> None:
        self.core.state.ends.__class__ = _ForgetfulEnds
        super().note_lead()


class _HastyEnds(KeptEnds):
    """Mutant of the list of ended inferences that treats each end as stored at once."""

    def take_stored(self) -> list[EndsStored]:
        self.take_changed()
        return super().take_stored()


class ServiceWithHastyEnds(WatchedService):
    """Mutant of the scheduler service that reports ended inferences as saved too early."""

    def note_lead(self) -> None:
        self.core.state.ends.__class__ = _HastyEnds
        super().note_lead()


class ClientThatKeepsNoEnds(WatchedQueueClient):
    """Mutant of the queue client that does not repeat ended inferences to a new scheduler."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.pending.remember_ended_lease = _ignore_end  # type: ignore[method-assign]


def _ignore_end(inference: PendingInference, outcome: Outcome) -> None:
    return


class ClientThatForgetsApplications(WatchedQueueClient):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.pending.note_ended_elsewhere = (  # type: ignore[method-assign]
            self.pending.forget_application
        )


class ServiceWithHastyUsage(WatchedService):
    """Mutant of the scheduler service that declares a day's usage final before it is saved."""

    async def usage(self, days: list[Day]) -> dict[str, Any]:
        return await super().usage(days) | {"open_from": int(self.term.driver.now() // DAY_S)}


def with_quotas(plan: Plan, *faults: Fault) -> Plan:
    """Return a fault plan with quotas and with the given faults only."""
    plan = plan if plan.tenants else draw_quotas(plan)
    assert plan.other is not None
    return replace(plan, faults=faults, other=replace(plan.other, faults=()))


def kill_accounts_repeatedly(plan: Plan) -> Plan:
    """Fault plan that kills the quota service repeatedly while applications arrive."""
    times = (2.0, 4.0, 6.0, 8.0)
    return with_quotas(plan, *(Fault(FaultKind.ACCOUNTS_CRASH, at, 0.1) for at in times))


def kill_scheduler_and_ingresses(plan: Plan) -> Plan:
    kinds = [(FaultKind.INGRESS_CRASH, k) for k in range(plan.ingresses)]
    kinds.append((FaultKind.SCHEDULER_CRASH, 0))
    faults = (
        Fault(kind, at, 1.0, party=party) for at in (2.0, 4.0, 6.0, 8.0) for kind, party in kinds
    )
    return with_quotas(plan, *faults)


def kill_scheduler_repeatedly(plan: Plan) -> Plan:
    times = ((1.5, 1.0), (3.6, 0.1), (5.2, 1.0), (7.7, 0.1), (9.3, 1.0))
    faults = tuple(Fault(FaultKind.SCHEDULER_CRASH, at, for_s) for at, for_s in times)
    return replace(plan, faults=faults, tenants={}, midnight_s=None, other=None)


def kill_scheduler_during_slow_saves(plan: Plan) -> Plan:
    slow = Fault(FaultKind.STORE_SLOW, 1.0, 15.0)
    deaths = (Fault(FaultKind.SCHEDULER_CRASH, at, 0.1) for at in (3.0, 5.5, 8.0, 10.5))
    return with_quotas(plan, slow, *deaths)


def midnight_without_store(plan: Plan) -> Plan:
    """Fault plan in which a day ends, and the scheduler dies, while its store is away."""
    plan = with_quotas(
        plan,
        Fault(FaultKind.STORE_AWAY, 2.5, 5.0),
        Fault(FaultKind.SCHEDULER_CRASH, 7.0, 0.1),
    )
    assert plan.other is not None
    other = replace(plan.other, midnight_s=3.0, faults=plan.faults)
    return replace(plan, midnight_s=3.0, other=other)
