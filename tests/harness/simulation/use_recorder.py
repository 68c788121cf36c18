"""Recorder of real use in a simulation, by tenant: quotas and usage are held against it.

Applications count as they are opened and inferences as they are let in, whichever scheduler does
it, and once over its death; tokens and KV token-time count as engines produce them, by the
inference, looked at once a second.
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
_TWO = 2
"""Terms, of which one has ended with a death."""


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount of a unit that was really used."""

    at_s: Seconds
    tenant: ClientId
    unit: Unit
    amount: float
    claim: ClaimName
    """The claim on it: the application's, or the inference's."""


class FinishedInference(NamedTuple):
    """An inference that came to its end."""

    at_s: Seconds
    tenant: ClientId
    name: ApplicationId
    output_tokens: Tokens


@dataclass(slots=True)
class Term:
    """A scheduler's time as the leader."""

    began_at: Seconds
    saved_at: Seconds | None = None
    """Beginning of its last save that succeeded."""


class UseRecorder:
    """Sees what each scheduler of one model opens and lets in, and what its engines produce."""

    def __init__(self, now: Callable[[], Seconds]) -> None:
        """Begin with nothing.

        Args:
            now: Returns the seconds since the simulation began.
        """
        self.amounts: list[Amount] = []
        self.terms: dict[Epoch, Term] = {}
        self._covered: dict[tuple[ClaimName, Unit], list[tuple[Seconds, float]]] = {}
        """What a claim holds of a metered unit, or has used if it is over, from instants on."""
        self._needs: dict[tuple[ClaimName, Unit], float] = {}
        """What a claim was expected to use as it was made."""
        self.tenants: dict[ApplicationId, ClientId] = {}
        self.lost_claims: Counter[tuple[ClientId, Unit]] = Counter()
        """Claims of this model that counted as used because nobody accounted for them."""
        self.begun: dict[tuple[RequestId, Epoch], ClientId] = {}
        """Inferences of which something was produced, with the schedulers that leased them."""
        self.finished: dict[RequestId, FinishedInference] = {}
        """Inferences that came to their ends, and when they did first."""
        self.aborted: set[RequestId] = set()
        """Inferences that a scheduler stopped, before it heard of their ends perhaps."""
        self._now = now
        self.granted_names: dict[ClaimName, tuple[ClientId, Unit]] = {}
        """Claims on exact units that the accounts have granted."""
        self.let_in: set[ClaimName] = set()
        """Claims of what some scheduler has let in."""
        self.has_resubmissions = False
        """Whether an ingress has submitted something again."""
        self._open: set[ApplicationId] = set()
        self.reopened: Counter[ClientId] = Counter()
        """Applications that were opened again for what may have been missing of their ends. An
        ingress that was cut off from the scheduler that ended one may bring it as another."""
        self._ended_by: set[tuple[Epoch, ApplicationId]] = set()
        self._brought: set[tuple[Epoch, ApplicationId]] = set()
        """Applications that were submitted again, and to which schedulers."""
        self._submitted: set[tuple[Epoch, IngressId]] = set()
        """Ingresses that have submitted again all that they had, and to which schedulers."""
        self.again: Counter[ClientId] = Counter()
        """Inferences that a scheduler let in again after they had ended there."""
        self._let_in_by: set[tuple[Epoch, RequestId]] = set()
        self._kept_claims: Counter[ClientId] = Counter()
        """Applications that came again as others, and may have the claims that they had."""
        self._over: set[ClaimName] = set()
        self._claimed_again: Counter[ClientId] = Counter()
        """Inferences whose claims were made again after they had been over."""
        self._produced: defaultdict[tuple[ClaimName, Unit], float] = defaultdict(float)

    # --- schedulers

    def became_leader(self, epoch: Epoch) -> None:
        """A scheduler leads."""
        self.terms[epoch] = Term(self._now())

    def saved(self, epoch: Epoch, began_at: Seconds) -> None:
        """All that a scheduler had booked when a save began is stored."""
        if epoch in self.terms:
            self.terms[epoch].saved_at = began_at

    def leads(self, epoch: Epoch) -> bool:
        """Return whether no later scheduler leads: what an earlier one lets in is not run."""
        return epoch >= max(self.terms, default=epoch)

    def opened(self, core: SchedulerCore, epoch: Epoch, arrival: ev.ApplicationArrived) -> None:
        """A scheduler has an application that it did not have before this event.

        It is another one if a caller has opened it, or if this very scheduler has ended it, unless
        ingresses bring what they have of one that an earlier scheduler had.
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
            self._add(tenant, Unit.APPLICATIONS, 1, name)
        self._open.add(name)
        self.tenants[name] = tenant

    def resubmitted(self, ingress_id: IngressId, epoch: Epoch) -> None:
        """An ingress has submitted again all that it had."""
        self._submitted.add((epoch, ingress_id))

    def ended(self, application_id: ApplicationId, epoch: Epoch) -> None:
        """A scheduler has ended an application."""
        self._ended_by.add((epoch, application_id))
        self._open.discard(application_id)

    def admitted(self, core: SchedulerCore, epoch: Epoch, item: ev.InferenceSubmitted) -> None:
        """A scheduler has let an inference in."""
        name = item.application_id
        claim, tenant = claim_of(item), core.state.applications[name].tenant
        if claim not in self.let_in:
            self.let_in.add(claim)
            self._add(tenant, Unit.INFERENCES, 1, claim)
        if (epoch, item.request_id) in self._let_in_by:
            self.again[tenant] += 1
        self._let_in_by.add((epoch, item.request_id))

    def decided(self, told: Exchange, verdicts: tuple[Verdict, ...]) -> None:
        """A scheduler hears what the accounts have decided."""
        for use in told.uses:
            if use.is_over:
                self._over.add(use.name)
            if use.is_over or use.is_final:
                for unit in METERED:
                    self._cover(use.name, unit, use.used.get(unit, 0))
        for ask, verdict in zip(told.asks, verdicts, strict=False):
            if verdict.refused_by is not None:
                continue
            if Unit.INFERENCES in verdict.holds:
                self._claimed_again[ask.tenant] += ask.name in self._over
                self._over.discard(ask.name)
            for unit in verdict.holds.keys() & set(METERED):
                self._cover(ask.name, unit, verdict.holds[unit])
                self._needs.setdefault(
                    (ask.name, unit), ask.needs.get(unit, ask.wants.get(unit, 0))
                )
            for unit in (Unit.APPLICATIONS, Unit.INFERENCES):
                if unit in verdict.holds:
                    self.granted_names[ask.name] = (ask.tenant, unit)

    def claim_lost(self, name: ClaimName, tenant: ClientId, unused: Mapping[Unit, float]) -> None:
        """The accounts count a claim as used that nobody accounts for, with what was unused of it.

        All of it may have been used. Whoever asks for it again asks for another one.
        """
        if not unused:
            self._over.add(name)
        for unit in unused:
            self.lost_claims[tenant, unit] += 1

    # --- engines

    def produced(self, tenant: ClientId, claim: ClaimName, unit: Unit, so_far: float) -> None:
        """Note what was produced in all for an inference, by leases that run or are over."""
        more = so_far - self._produced[claim, unit]
        if more > 0:
            self._add(tenant, unit, more, claim)
            self._produced[claim, unit] = so_far

    def began(self, request_id: RequestId, epoch: Epoch, application_id: ApplicationId) -> None:
        """Something of an inference was produced."""
        self.begun.setdefault((request_id, epoch), self.tenants[application_id])

    def completed(
        self,
        request_id: RequestId,
        epoch: Epoch,
        application_id: ApplicationId,
        output_tokens: Tokens,
    ) -> None:
        """An engine has brought an inference to its end."""
        self.began(request_id, epoch, application_id)
        end = FinishedInference(
            self._now(), self.tenants[application_id], application_id, output_tokens
        )
        self.finished.setdefault(request_id, end)

    # --- totals

    def total(self, unit: Unit) -> defaultdict[ClientId, float]:
        """Return what was used of a unit by each tenant."""
        totals: defaultdict[ClientId, float] = defaultdict(float)
        for used in self.amounts:
            if used.unit is unit:
                totals[used.tenant] += used.amount
        return totals

    def maybe_counted(self, tenant: ClientId, unit: Unit) -> int:
        """Return how much may be counted of a unit beyond what was let in, over deaths.

        Claims that were lost, claims that were granted for what an earlier scheduler may have let
        in, and inferences that are claimed again, for their ends were not heard of.
        """
        count = self.lost_claims[tenant, unit]
        if unit is Unit.INFERENCES:
            count += self._claimed_again[tenant]
        if self.has_resubmissions:
            names = self.granted_names.keys() - self.let_in
            count += sum(self.granted_names[name] == (tenant, unit) for name in names)
        return count

    def maybe_missed(self, tenant: ClientId, unit: Unit) -> int:
        """Return how much may be missed that was let in while the accounts did not answer.

        By schedulers that died before they did; and applications that came again after such deaths.
        """
        if len(self.terms) < _TWO:
            return 0
        kept = self._kept_claims[tenant] if unit is Unit.APPLICATIONS else 0
        return kept + sum(
            one.amount == 1 and one.claim not in self.granted_names
            for one in self.amounts
            if (one.tenant, one.unit) == (tenant, unit)
        )

    def beyond(self, claim: ClaimName, unit: Unit, at_s: Seconds) -> tuple[float, float]:
        """Return what was produced under a claim until then beyond what it needed, and held.

        It was mispredicted; and what was made of it after it was cancelled, or twice over, or while
        the accounts did not answer, no claim has held.
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

    def _cover(self, claim: ClaimName, unit: Unit, amount: float) -> None:
        self._covered.setdefault((claim, unit), []).append((self._now(), amount))

    def _add(self, tenant: ClientId, unit: Unit, amount: float, name: ClaimName) -> None:
        self.amounts.append(Amount(self._now(), tenant, unit, amount, name))


def claim_of(inference: ev.InferenceSubmitted | Inference) -> ClaimName:
    """Return the name of an inference's claim."""
    return f"{inference.application_id}#{inference.inference_id}"
