"""Parts that keep quotas and usage with one mistake each, for simulations that have to find it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from justitia_ray.core.actions import EndsStored
from justitia_ray.core.entities import Outcome
from justitia_ray.core.kept_ends import KeptEnds
from justitia_ray.core.tenants import METERED, Unit
from justitia_ray.core.usage import DAY_S, Day
from justitia_ray.serve.ingress.pending_inferences import PendingInference
from justitia_ray.serve.scheduler.claims import Claim
from justitia_ray.serve.scheduler.quota_gate import QuotaGate
from justitia_ray.store.schema import encode
from justitia_ray.units import ApplicationId, Epoch, RequestId
from tests.harness.simulation.accounts import WatchedAccounts
from tests.harness.simulation.parts import WatchedService
from tests.harness.simulation.plan import Fault, FaultKind, Plan, draw_quotas
from tests.harness.simulation.store import StoreClient
from tests.harness.simulation.unusable_leases import WatchedQueueClient


class AccountsThatForgetClaims(WatchedAccounts):
    """Put back what was used, and not what is claimed."""

    async def begin(self) -> None:
        """Begin a term without the claims that were stored."""
        await super().begin()
        for term in self.book._terms.values():
            term.claims.clear()
        self.book.configure(self.book.tree, self._wall())


class _GateThatCountsNothing(QuotaGate):
    """Gives all back that an application or an inference has claimed."""

    def _settle(
        self, claim: Claim, used: Mapping[Unit, float], *, when_stored: bool = False
    ) -> None:
        super()._settle(claim, {}, when_stored=when_stored)


class ServiceThatCountsNothing(WatchedService):
    """Has that gate."""

    def watch(self, *parts: Any) -> None:
        """Put the gate in its place."""
        super().watch(*parts)
        self.term.gate.__class__ = _GateThatCountsNothing


class _GateWithoutSurvivors(QuotaGate):
    """Never says which claims of its predecessor live."""

    def begin(self, epoch: Epoch) -> None:
        super().begin(epoch)
        self._began_at = None


class ServiceWithoutSurvivors(WatchedService):
    """Has that gate."""

    def watch(self, *parts: Any) -> None:
        """Put the gate in its place."""
        super().watch(*parts)
        self.term.gate.__class__ = _GateWithoutSurvivors


class _GateThatReservesNothing(QuotaGate):
    """Claims of an inference what it counts, and nothing of what it will use."""

    def _make(self, claim: Claim) -> Claim:
        for unit in METERED:
            if claim.request_id is not None and unit in claim.wants:
                claim.wants[unit] = 0.0
                claim.needs = {**claim.needs, unit: 0.0}
        return super()._make(claim)


class ServiceThatReservesNothing(WatchedService):
    """Has that gate."""

    def watch(self, *parts: Any) -> None:
        """Put the gate in its place."""
        super().watch(*parts)
        self.term.gate.__class__ = _GateThatReservesNothing


class _GateThatKeepsClaims(QuotaGate):
    """Gives nothing back of an inference that has ended."""

    def _used_of(self, claim: Claim) -> tuple[dict[Unit, float], bool]:
        used, is_final = super()._used_of(claim)
        return used, is_final and claim.request_id is None


class ServiceThatKeepsClaims(WatchedService):
    """Has that gate."""

    def watch(self, *parts: Any) -> None:
        """Put the gate in its place."""
        super().watch(*parts)
        self.term.gate.__class__ = _GateThatKeepsClaims


class StoreThatSavesUsageApart(StoreClient):
    """Saves totals before what they are the totals of, not in one step."""

    async def save(self, *parts: Any) -> bool:
        """Save twice."""
        usage = parts[_USAGE] if len(parts) > _USAGE else None
        await self._exchange(lambda: self._write(usage or {}))
        return await super().save(*parts)

    def _write(self, usage: Mapping[Day, Mapping[str, Any]]) -> None:
        for day, of_day in usage.items():
            encoded = {name: encode(name, record) for name, record in of_day.items()}
            self._redis.usage.setdefault(day, {}).update(encoded)


_USAGE = 6
"""Place of the totals among the arguments of a save."""


class _ForgetfulEnds(KeptEnds):
    """Does not know which ends are counted."""

    def is_counted(self, application_id: ApplicationId, request_id: RequestId) -> bool:
        return False


class ServiceThatCountsAgain(WatchedService):
    """Has those ends."""

    def note_lead(self) -> None:
        """Put the ends in their place."""
        self.core.state.ends.__class__ = _ForgetfulEnds
        super().note_lead()


class _HastyEnds(KeptEnds):
    """Takes ends for stored as they happen."""

    def take_stored(self) -> list[EndsStored]:
        self.take_changed()
        return super().take_stored()


class ServiceWithHastyEnds(WatchedService):
    """Says that ends are stored which a save that has just ended does not have."""

    def note_lead(self) -> None:
        """Put the ends in their place."""
        self.core.state.ends.__class__ = _HastyEnds
        super().note_lead()


class ClientThatKeepsNoEnds(WatchedQueueClient):
    """Tells a new scheduler of nothing that was answered."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.pending.keep_end = _keep_nothing  # type: ignore[method-assign]


def _keep_nothing(inference: PendingInference, outcome: Outcome) -> None:
    return


class ClientThatForgetsApplications(WatchedQueueClient):
    """Does not keep applications that have ended."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.pending.note_ended_elsewhere = (  # type: ignore[method-assign]
            self.pending.forget_application
        )


class ServiceWithHastyUsage(WatchedService):
    """A scheduler by which a day is final once it is over, saved or not."""

    async def usage(self, days: list[Day]) -> dict[str, Any]:
        """Return totals, those of all days before today as final ones."""
        return await super().usage(days) | {"open_from": int(self.term.driver.now() // DAY_S)}


def with_quotas(plan: Plan, *faults: Fault) -> Plan:
    """Return a plan with quotas and these faults alone."""
    plan = plan if plan.tenants else draw_quotas(plan)
    assert plan.other is not None
    return replace(plan, faults=faults, other=replace(plan.other, faults=()))


def accounts_die(plan: Plan) -> Plan:
    """Let the accounts die again and again while applications come."""
    times = (2.0, 4.0, 6.0, 8.0)
    return with_quotas(plan, *(Fault(FaultKind.ACCOUNTS_CRASH, at, 0.1) for at in times))


def everybody_dies(plan: Plan) -> Plan:
    """Let the scheduler die with all ingresses, so that nobody submits again."""
    kinds = [(FaultKind.INGRESS_CRASH, k) for k in range(plan.ingresses)]
    kinds.append((FaultKind.SCHEDULER_CRASH, 0))
    faults = (
        Fault(kind, at, 1.0, party=party) for at in (2.0, 4.0, 6.0, 8.0) for kind, party in kinds
    )
    return with_quotas(plan, *faults)


def scheduler_dies(plan: Plan) -> Plan:
    """Let the scheduler die again and again, and nothing else happen."""
    times = ((1.5, 1.0), (3.6, 0.1), (5.2, 1.0), (7.7, 0.1), (9.3, 1.0))
    faults = tuple(Fault(FaultKind.SCHEDULER_CRASH, at, for_s) for at, for_s in times)
    return replace(plan, faults=faults, tenants={}, midnight_s=None, other=None)


def scheduler_dies_as_it_saves(plan: Plan) -> Plan:
    """Let the scheduler die again and again while its store is slow."""
    slow = Fault(FaultKind.STORE_SLOW, 1.0, 15.0)
    deaths = (Fault(FaultKind.SCHEDULER_CRASH, at, 0.1) for at in (3.0, 5.5, 8.0, 10.5))
    return with_quotas(plan, slow, *deaths)


def midnight_without_store(plan: Plan) -> Plan:
    """Let a day end while its last totals cannot be stored, and the scheduler die before they are.

    The day begins after that for the successor, too.
    """
    plan = with_quotas(
        plan,
        Fault(FaultKind.STORE_AWAY, 2.5, 5.0),
        Fault(FaultKind.SCHEDULER_CRASH, 7.0, 0.1),
    )
    assert plan.other is not None
    other = replace(plan.other, midnight_s=3.0, faults=plan.faults)
    return replace(plan, midnight_s=3.0, other=other)
