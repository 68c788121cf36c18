"""Recorder of real use by tenant in a simulation, against which quotas and usage are checked.

Applications count when opened and inferences when admitted, by whichever scheduler, and once over
its death. Tokens and KV token-time count as engines produce them, per inference, sampled once a
second.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from justitia_ray.accounts.messages import ClaimName, Exchange, Verdict
from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.entities import Inference
from justitia_ray.core.tenants import Unit
from justitia_ray.units import (
    ApplicationId,
    ClientId,
    Epoch,
    IngressId,
    RequestId,
    Seconds,
    Tokens,
)

METERED = (Unit.TOKENS, Unit.KV_TOKEN_TIME)
_LEADERS_AFTER_A_DEATH = 2
"""Minimum number of schedulers that have led if one of them has died."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Amount that a tenant really used of a quota's unit."""

    at_s: Seconds
    tenant: ClientId
    unit: Unit
    amount: float
    claim: ClaimName
    """Name of the quota reservation, for an application or an inference."""


class FinishedInference(NamedTuple):
    at_s: Seconds
    tenant: ClientId
    name: ApplicationId
    output_tokens: Tokens


@dataclass(slots=True)
class Term:
    """Interval in which one scheduler leads."""

    began_at: Seconds
    saved_at: Seconds | None = None
    """Start of the scheduler's last successful save; None without a save."""


class UseRecorder:
    """Observer of the real use in the schedulers and engines of one model."""

    def __init__(self, now: Callable[[], Seconds]) -> None:
        self.amounts: list[Amount] = []
        self.terms: dict[Epoch, Term] = {}
        self._covered: dict[tuple[ClaimName, Unit], list[tuple[Seconds, float]]] = {}
        """(start, value) pairs of a quota reservation: first the reserved amount, at its end the
        used amount.
        """
        self._needs: dict[tuple[ClaimName, Unit], float] = {}
        """Expected use of a quota reservation when it was made."""
        self.tenants: dict[ApplicationId, ClientId] = {}
        self.lost_claims: Counter[tuple[ClientId, Unit]] = Counter()
        """Quota reservations of this model that count as used because their scheduler died."""
        self.begun: dict[tuple[RequestId, Epoch], ClientId] = {}
        """Inferences with output, by the scheduler that leased them."""
        self.finished: dict[RequestId, FinishedInference] = {}
        """First completion of each completed inference."""
        self.aborted: set[RequestId] = set()
        """Inferences that a scheduler aborted, perhaps before it received their ends."""
        self._now = now
        self.granted_names: dict[ClaimName, tuple[ClientId, Unit]] = {}
        """Granted quota reservations in units that are counted exactly."""
        self.let_in: set[ClaimName] = set()
        """Quota reservations of all inferences and applications that a scheduler admitted."""
        self.has_resubmissions = False
        """Whether an ingress has submitted an inference again."""
        self._open: set[ApplicationId] = set()
        self.reopened: Counter[ClientId] = Counter()
        """Number of applications that were opened again, because a cut-off ingress missed their
        ends.
        """
        self._ended_by: set[tuple[Epoch, ApplicationId]] = set()
        self._brought: set[tuple[Epoch, ApplicationId]] = set()
        """Applications that were resubmitted, with the scheduler's epoch."""
        self._submitted: set[tuple[Epoch, IngressId]] = set()
        """Ingresses that have resubmitted all their inferences, with the scheduler's epoch."""
        self.again: Counter[ClientId] = Counter()
        """Number of inferences that a scheduler admitted again after it had ended them."""
        self._let_in_by: set[tuple[Epoch, RequestId]] = set()
        self._kept_claims: Counter[ClientId] = Counter()
        """Number of each tenant's applications that were opened again and may still hold earlier
        quota reservations.
        """
        self._over: set[ClaimName] = set()
        self._claimed_again: Counter[ClientId] = Counter()
        """Number of inferences with a second quota reservation after the first was over."""
        self._produced: defaultdict[tuple[ClaimName, Unit], float] = defaultdict(float)

    # --- schedulers

    def became_leader(self, epoch: Epoch) -> None:
        self.terms[epoch] = Term(self._now())

    def saved(self, epoch: Epoch, began_at: Seconds) -> None:
        """Record that all use counted before a save began is stored."""
        if epoch in self.terms:
            self.terms[epoch].saved_at = began_at

    def is_latest_epoch(self, epoch: Epoch) -> bool:
        """Return whether no later scheduler leads."""
        return epoch >= max(self.terms, default=epoch)

    def opened(self, core: SchedulerCore, epoch: Epoch, arrival: ev.ApplicationArrived) -> None:
        """Record an application that is new to a scheduler.

        It counts as another application if a caller has opened it, or if this scheduler had ended
        it, unless ingresses resubmit one that an earlier scheduler had.
        """
        name = arrival.application_id
        tenant = core.state.applications[name].tenant
        is_brought = (epoch, arrival.ingress_id) not in self._submitted
        is_brought = is_brought and (epoch, name) in self._brought
        is_known = name in self.let_in and ((epoch, name) not in self._ended_by or is_brought)
        is_same = arrival.resubmitted and (is_known or arrival.is_counted)
        self.reopened[tenant] += is_same and name not in self._open
        if arrival.resubmitted:
            self._brought.add((epoch, name))
        if name not in self._open and not is_same:
            is_again = arrival.resubmitted and name in self.let_in
            self._kept_claims[tenant] += is_again and name not in self._over
            self.let_in.add(name)
            self._add_amount(tenant, Unit.APPLICATIONS, 1, name)
        self._open.add(name)
        self.tenants[name] = tenant

    def resubmitted(self, ingress_id: IngressId, epoch: Epoch) -> None:
        self._submitted.add((epoch, ingress_id))

    def ended(self, application_id: ApplicationId, epoch: Epoch) -> None:
        self._ended_by.add((epoch, application_id))
        self._open.discard(application_id)

    def admitted(self, core: SchedulerCore, epoch: Epoch, item: ev.InferenceSubmitted) -> None:
        name = item.application_id
        claim, tenant = claim_name(item), core.state.applications[name].tenant
        if claim not in self.let_in:
            self.let_in.add(claim)
            self._add_amount(tenant, Unit.INFERENCES, 1, claim)
        if (epoch, item.request_id) in self._let_in_by:
            self.again[tenant] += 1
        self._let_in_by.add((epoch, item.request_id))

    def decided(self, told: Exchange, verdicts: tuple[Verdict, ...]) -> None:
        """Record the answers of the quota service that a scheduler receives."""
        for use in told.uses:
            if use.is_over:
                self._over.add(use.name)
            if use.is_over or use.is_final:
                for unit in METERED:
                    self._record_covered_amount(use.name, unit, use.used.get(unit, 0))
        for ask, verdict in zip(told.asks, verdicts, strict=False):
            if verdict.refused_by is not None:
                continue
            if Unit.INFERENCES in verdict.holds:
                self._claimed_again[ask.tenant] += ask.name in self._over
                self._over.discard(ask.name)
            for unit in verdict.holds.keys() & set(METERED):
                self._record_covered_amount(ask.name, unit, verdict.holds[unit])
                self._needs.setdefault(
                    (ask.name, unit), ask.needs.get(unit, ask.wants.get(unit, 0))
                )
            for unit in (Unit.APPLICATIONS, Unit.INFERENCES):
                if unit in verdict.holds:
                    self.granted_names[ask.name] = (ask.tenant, unit)

    def claim_lost(self, name: ClaimName, tenant: ClientId, unused: Mapping[Unit, float]) -> None:
        """Record a quota reservation that counts as used because its scheduler died.

        All of it may have been used. A later request for it makes another claim.
        """
        if not unused:
            self._over.add(name)
        for unit in unused:
            self.lost_claims[tenant, unit] += 1

    # --- engines

    def produced(self, tenant: ClientId, claim: ClaimName, unit: Unit, so_far: float) -> None:
        """Record the total output of an inference, over running and ended leases."""
        more = so_far - self._produced[claim, unit]
        if more > 0:
            self._add_amount(tenant, unit, more, claim)
            self._produced[claim, unit] = so_far

    def began(self, request_id: RequestId, epoch: Epoch, application_id: ApplicationId) -> None:
        """Record that an inference has output tokens."""
        self.begun.setdefault((request_id, epoch), self.tenants[application_id])

    def completed(
        self,
        request_id: RequestId,
        epoch: Epoch,
        application_id: ApplicationId,
        output_tokens: Tokens,
    ) -> None:
        self.began(request_id, epoch, application_id)
        end = FinishedInference(
            self._now(), self.tenants[application_id], application_id, output_tokens
        )
        self.finished.setdefault(request_id, end)

    # --- totals

    def use_by_tenant(self, unit: Unit) -> defaultdict[ClientId, float]:
        totals: defaultdict[ClientId, float] = defaultdict(float)
        for used in self.amounts:
            if used.unit is unit:
                totals[used.tenant] += used.amount
        return totals

    def possible_overcount(self, tenant: ClientId, unit: Unit) -> int:
        """Return the use beyond the admitted that a quota may count after deaths of processes.

        Included are lost claims, claims granted for work that an earlier scheduler may have
        admitted, and inferences claimed again because their ends were not received.
        """
        count = self.lost_claims[tenant, unit]
        if unit is Unit.INFERENCES:
            count += self._claimed_again[tenant]
        if self.has_resubmissions:
            names = self.granted_names.keys() - self.let_in
            count += sum(self.granted_names[name] == (tenant, unit) for name in names)
        return count

    def possible_undercount(self, tenant: ClientId, unit: Unit) -> int:
        """Return the admitted use that a quota may miss, as the quota service did not answer.

        Included are schedulers that died before the answer, and applications that returned after
        such deaths.
        """
        if len(self.terms) < _LEADERS_AFTER_A_DEATH:
            return 0
        kept = self._kept_claims[tenant] if unit is Unit.APPLICATIONS else 0
        return kept + sum(
            one.amount == 1 and one.claim not in self.granted_names
            for one in self.amounts
            if (one.tenant, one.unit) == (tenant, unit)
        )

    def use_beyond_claim(self, claim: ClaimName, unit: Unit, at_s: Seconds) -> tuple[float, float]:
        """Return the use that exceeded a quota reservation until a time.

        The first is misprediction. The second is work that no claim covered: after cancellation, in
        a second run, or while the accounts did not answer.
        """
        produced = sum(
            one.amount
            for one in self.amounts
            if one.claim == claim and one.unit is unit and one.at_s <= at_s
        )
        covered = self._covered.get((claim, unit), ())
        held = next((amount for since_s, amount in reversed(covered) if since_s <= at_s), 0.0)
        needed = self._needs.get((claim, unit), 0.0)
        return max(0.0, min(produced, held) - needed), max(0.0, produced - held)

    def _record_covered_amount(self, claim: ClaimName, unit: Unit, amount: float) -> None:
        self._covered.setdefault((claim, unit), []).append((self._now(), amount))

    def _add_amount(self, tenant: ClientId, unit: Unit, amount: float, name: ClaimName) -> None:
        self.amounts.append(Amount(self._now(), tenant, unit, amount, name))


def claim_name(inference: ev.InferenceSubmitted | Inference) -> ClaimName:
    return f"{inference.application_id}#{inference.inference_id}"
