"""Claims of a scheduler on its tenants' quotas, and the accounts' interface that grants them."""

import asyncio
import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Protocol

from justitia_ray.accounts.messages import Amounts, Answer, Ask, ClaimName, Exchange, Use
from justitia_ray.accounts.messages import Verdict as Decision
from justitia_ray.core.entities import Inference
from justitia_ray.core.events import ApplicationArrived, InferenceSubmitted
from justitia_ray.core.limits import LimitStanding
from justitia_ray.core.tenants import METERED, OnExhausted, TenantTree, Unit
from justitia_ray.cost import PrefillCost, choices_kv_token_time
from justitia_ray.units import ApplicationId, ClientId, Epoch, RequestId, Seconds, Tokens

RETRY_AFTER_S: Seconds = 5.0
UNREACHABLE = LimitStanding("", "", 0, 0, 0)
"""Limit named in the refusal of a claim that the quota accounts have not decided in time."""
_MOST_REFUSED = 10_000
_MOST_TOLD = 100_000
_TOLD_KEPT_S: Seconds = 10.0
"""Seconds for which an ended claim can be reported again to restarted quota accounts. This exceeds
the lag of a Redis replica that becomes master.
"""
_STORED_WITHIN_S: Seconds = 5.0
"""Maximum seconds for which an ended quota claim waits until the scheduler has stored its end."""


class Accounts(Protocol):
    """Interface of the accounts that keep the quotas of an application's tenants."""

    async def configure(self, tenants: Mapping[str, Any]) -> Epoch:
        """Send the tree of tenants (`SchedulingConfig.tenants`); return the accounts' epoch.

        Raises:
            AdmissionError: If the accounts are unreachable.
        """

    async def exchange(self, told: Exchange) -> Answer:
        """Report usage of quotas, and request reservations of quotas (claims).

        Raises:
            AdmissionError: If the accounts are unreachable.
        """


@dataclass(slots=True, eq=False)
class Claim:
    """Reservation on the quotas of a tenant, for an application or one inference."""

    name: ClaimName
    application_id: ApplicationId
    tenant: ClientId
    wants: dict[Unit, float]
    """Maximum amounts that the application or inference may use, by unit."""
    needs: Mapping[Unit, float] = field(default_factory=dict)
    """Amounts that the application or inference is expected to use, by unit."""
    request_id: RequestId | None = None
    """Inference that makes the quota claim; None for the claim of an application."""
    holds: Mapping[Unit, float] = field(default_factory=dict)
    told: Mapping[Unit, float] = field(default_factory=dict)
    """Usage under the claim, as last reported to the quota accounts."""
    asks: bool = True
    """Whether the next exchange with the quota accounts has to request the claim."""
    is_decided: bool = False
    refused: Decision | None = None
    """Refusal of the claim by the quota accounts; None while undecided or if granted."""
    waits: Decision | None = None
    """Refusal of a claim that waits because a quota has too little left; None if it does not wait.
    """
    in_the_way: tuple[Decision, Seconds] | None = None
    """Last refusal of an inference of the application, with its time. Only the quota claim of an
    application has one; None once an inference is admitted again.
    """
    is_deprioritised: bool = False
    may_have_run: bool = False
    """Whether an earlier scheduler may have granted the quota claim and died before it reported the
    grant.
    """
    has_run: bool = False
    """Whether the quota claim's inference has already ended, so that a refusal comes too late."""
    number: int = 0
    """Position of the quota claim in the order of the scheduler's claims."""
    deadline: asyncio.TimerHandle | None = None

    @property
    def is_unknown_to_accounts(self) -> bool:
        """Whether the claim was admitted while the quota accounts were unreachable."""
        is_let_in = self.is_decided and self.refused is None
        claims = any(self.wants.values())
        return is_let_in and claims and not self.holds and not self.may_have_run

    def unused(self) -> dict[Unit, float]:
        """Return the amounts that an earlier scheduler may have used under the claim."""
        exact = (Unit.APPLICATIONS, Unit.INFERENCES)
        return {unit: 1.0 for unit in exact if self.may_have_run and unit in self.wants}


@dataclass(frozen=True, slots=True)
class Unopened:
    """An application that the quotas have kept from being opened."""

    arrival: ApplicationArrived
    is_refused: bool
    """Whether the application was refused; otherwise the quota accounts have not decided yet."""
    node: ClientId | None
    """Tenant whose quota keeps the application from being opened; None: unknown."""
    comes_back_s: Seconds | None
    """Seconds until the quota is expected to have enough for the application; None: unknown."""
    waiting: int = 0
    """Number of inferences that are held back with the application."""


_SOMETHING = 1.0
"""Amount of a metered unit, such as tokens, that a quota must have left for an application to be
opened.
"""


def claim_of_application(
    tree: TenantTree, tenant: ClientId
) -> tuple[dict[Unit, float], dict[Unit, float]]:
    """Return the claim on quotas of an application that opens, and the amounts that must be left.

    The claim reserves none of the units that its inferences claim, but checks whether a
    deprioritising quota is exhausted. The application is not opened if nothing of a metered unit is
    left.
    """
    wants: dict[Unit, float] = {}
    for _, node in tree.nodes(tenant):
        for quota in node.quotas:
            if quota.unit is not Unit.INFERENCES or quota.on_exhausted is OnExhausted.DEPRIORITISE:
                wants[quota.unit] = 1.0 if quota.unit is Unit.APPLICATIONS else 0.0
    needs: dict[Unit, float] = {
        unit: min(_SOMETHING, least_limit(tree, tenant, unit))
        for unit in wants
        if unit is not Unit.INFERENCES
    }
    return wants, needs


def claim_of_inference(
    tree: TenantTree,
    tenant: ClientId,
    item: InferenceSubmitted,
    prefill_cost: PrefillCost | None = None,
) -> tuple[dict[Unit, float], dict[Unit, float]]:
    """Return an inference's claim on quotas: its maximum usage and its expected usage.

    An inference that is expected to exceed a limit needs the whole limit; an inference that is
    certain to exceed it is never admitted.
    """
    wants: dict[Unit, float] = {}
    needs: dict[Unit, float] = {}
    most = item.max_output_tokens
    reserved = most if item.reserve_output_tokens is None else item.reserve_output_tokens
    expected = max(item.least_output_tokens, min(item.predicted_output_tokens, most))
    for unit in units_of(tree, tenant) - {Unit.APPLICATIONS}:
        if unit is Unit.INFERENCES:
            wants[unit] = needs[unit] = 1.0
            continue
        least = _metered_amount(unit, item, item.least_output_tokens, None)
        likely, held = (
            _metered_amount(unit, item, output, prefill_cost)
            for output in (expected, max(reserved, expected))
        )
        if unit is Unit.COMPUTED_TOKENS:
            least = float(item.least_output_tokens)  # The whole prompt may be in the prefix cache.
        limit = least_limit(tree, tenant, unit)
        needs[unit] = max(least, min(likely, limit))
        wants[unit] = max(held if limit < math.inf else likely, needs[unit])
    return wants, needs


def claim_of_running(
    tree: TenantTree,
    tenant: ClientId,
    inference: Inference,
    prefill_cost: PrefillCost | None = None,
) -> tuple[dict[Unit, float], dict[Unit, float]]:
    """Return the claim of an inference that was admitted before quotas were configured."""
    units = units_of(tree, tenant).intersection(METERED)
    most, expected = inference.max_output_tokens, inference.expected_output
    return (
        {
            unit: _metered_amount(unit, inference, max(most, expected), prefill_cost)
            for unit in units
        },
        {unit: _metered_amount(unit, inference, expected, prefill_cost) for unit in units},
    )


def _metered_amount(
    unit: Unit,
    of: InferenceSubmitted | Inference,
    output_tokens: Tokens,
    prefill_cost: PrefillCost | None,
) -> float:
    """Return the amount of a metered unit that an inference with `output_tokens` uses.

    No prompt token is assumed to be in the prefix cache.
    """
    if unit in (Unit.TOKENS, Unit.COMPUTED_TOKENS):
        return float(of.prompt_tokens + output_tokens)
    amount = choices_kv_token_time(of.prompt_tokens, output_tokens, of.choices)
    if prefill_cost is not None:
        each = of.prompt_tokens // of.choices
        amount += of.choices * prefill_cost.of(each, each)
    return float(amount)


def units_of(tree: TenantTree, tenant: ClientId) -> set[Unit]:
    """Return the units of the quotas of a tenant and of its ancestors."""
    return {quota.unit for _, node in tree.nodes(tenant) for quota in node.quotas}


def least_limit(tree: TenantTree, tenant: ClientId, unit: Unit) -> float:
    """Return the smallest limit on a unit that refuses a tenant; infinite without limit."""
    return min(
        (
            quota.limit
            for _, node in tree.nodes(tenant)
            for quota in node.quotas
            if quota.unit is unit and quota.on_exhausted is OnExhausted.REJECT
        ),
        default=math.inf,
    )


def used_by(inference: Inference) -> dict[Unit, float]:
    """Return the usage of an inference so far; see `Inference.begun_prompt_tokens`."""
    return {
        Unit.INFERENCES: 1.0,
        Unit.TOKENS: float(inference.begun_prompt_tokens + inference.output_tokens),
        Unit.COMPUTED_TOKENS: float(inference.begun_computed_tokens + inference.output_tokens),
        Unit.KV_TOKEN_TIME: float(inference.received),
    }


def use_beyond_claim(
    inference: Inference, claim: Claim, prefill_cost: PrefillCost | None = None
) -> dict[Unit, float]:
    """Return the expected total use in each unit in which an inference exceeds its quota claim."""
    used = used_by(inference)
    total = inference.output_tokens + inference.expected_remaining(inference.output_tokens)
    return {
        unit: max(used[unit], _metered_amount(unit, inference, total, prefill_cost))
        for unit in METERED
        if unit in claim.wants and used[unit] > claim.wants[unit]
    }


class EndedClaims:
    """Ended claims on quotas, kept until the scheduler has stored that they ended.

    A new scheduler that has no record of the end would request the claim again, so the accounts
    must keep the claim until then.
    """

    def __init__(self) -> None:
        self._ended: dict[ClaimName, tuple[Seconds, Use]] = {}

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, use: Use, now: Seconds) -> None:
        self._ended[use.name] = (now, use)

    def uses(self) -> tuple[Use, ...]:
        """Return the usage of all ended claims, for a report to the quota accounts."""
        return tuple(use for _, use in self._ended.values())

    def names(self) -> tuple[ClaimName, ...]:
        return tuple(self._ended)

    def pop(self, name: ClaimName) -> Use | None:
        """Remove an ended quota claim and return its usage; None if the claim is unknown."""
        ended = self._ended.pop(name, None)
        return None if ended is None else ended[1]

    def holds(self, use: Use) -> bool:
        """Return whether exactly this report of an ended quota claim is kept."""
        return use.name in self._ended and self._ended[use.name][1] is use

    def overdue(self, now: Seconds) -> list[ClaimName]:
        """Return the ended quota claims that have been kept for the maximum time."""
        return [name for name, (at, _) in self._ended.items() if now - at > _STORED_WITHIN_S]

    def clear(self) -> None:
        self._ended.clear()


@dataclass(slots=True)
class _ReportedEnd:
    """Ended claim on quotas, as it was reported to the accounts."""

    tenant: ClientId
    claimed: Amounts
    """Amounts that were used, in the units of the quota claim."""
    use: Use
    number: int
    """Number of the exchange that reported the end of the quota claim."""
    at: Seconds


class RecentlyReportedEnds:
    """Recently reported ends of claims on quotas, which restarted accounts may have lost.

    That happens if the accounts died while their store was unreachable, or if the store lost its
    latest writes because a lagging replica became the master.
    """

    def __init__(self) -> None:
        self._ends = count()
        self._told: dict[int, _ReportedEnd] = {}
        """Reports of ended quota claims, oldest first. A claim's name may be reused before its end
        is stored.
        """
        self._last: dict[ClaimName, int] = {}
        """Position in `_told` of each quota claim's latest report, by the claim's name."""

    def __bool__(self) -> bool:
        return bool(self._told)

    def add(self, claim: Claim, use: Use, number: int, now: Seconds) -> None:
        """Keep the report of an ended quota claim that used anything, by its exchange's number."""
        units = claim.wants.keys() | claim.holds.keys()
        claimed = {unit: used for unit, used in use.used.items() if used and unit in units}
        if claimed:
            self._put_last(_ReportedEnd(claim.tenant, claimed, use, number, now))
            if len(self._told) > _MOST_TOLD:
                self._forget_end(next(iter(self._told)))
        else:
            # A later report of this quota claim must not find an earlier claim of the same name.
            self._last.pop(use.name, None)

    def note_over(self, use: Use, number: int, now: Seconds) -> None:
        """Note the exchange that reports a quota claim's end as stored."""
        place = self._last.get(use.name)
        if place is not None:
            told = self._forget_end(place)
            self._put_last(_ReportedEnd(told.tenant, told.claimed, use, number, now))

    def note_stored(self, number: int, now: Seconds) -> None:
        """Forget reports that the quota accounts stored some time ago, up to this exchange."""
        while self._told:
            place, oldest = next(iter(self._told.items()))
            if oldest.number > number or now - oldest.at <= _TOLD_KEPT_S:
                return
            self._forget_end(place)

    def after(self, number: int) -> list[Use]:
        """Return the usage of quota claims whose end was reported later than an exchange."""
        return list({told.use.name: told.use for told in self._merged_ends(number)}.values())

    def asks(self, number: int) -> tuple[Ask, ...]:
        """Return claim requests for the usage that `after` returns.

        If another tenant has reused a name since, the first tenant's usage is counted when the
        second one claims.
        """
        return tuple(
            Ask(told.use.name, told.tenant, told.claimed, is_granted=True)
            for told in self._merged_ends(number)
        )

    def renumber(self, after: int, number: int) -> None:
        """Assign a new exchange number to the reports that were sent after an exchange."""
        for told in self._ends_after(after):
            told.number = number

    def _ends_after(self, number: int) -> list[_ReportedEnd]:
        return [told for told in self._told.values() if told.number > number]

    def _merged_ends(self, number: int) -> list[_ReportedEnd]:
        """Return the reports sent after an exchange, merged by quota claim name and tenant."""
        merged: list[_ReportedEnd] = []
        places: dict[ClaimName, int] = {}
        for told in self._ends_after(number):
            place = places.get(told.use.name)
            if place is None or merged[place].tenant != told.tenant:
                places[told.use.name] = len(merged)
                merged.append(told)
                continue
            claimed = _sum_of_amounts(merged[place].claimed, told.claimed)
            use = replace(told.use, used=_sum_of_amounts(merged[place].use.used, told.use.used))
            merged[place] = replace(told, claimed=claimed, use=use)
        return merged

    def _put_last(self, told: _ReportedEnd) -> None:
        place = self._last[told.use.name] = next(self._ends)
        self._told[place] = told

    def _forget_end(self, place: int) -> _ReportedEnd:
        told = self._told.pop(place)
        if self._last.get(told.use.name) == place:
            del self._last[told.use.name]
        return told

    def clear(self) -> None:
        self._told.clear()
        self._last.clear()


def with_lost_ends(
    told: Exchange, number: int, lost: Iterable[Use], live: Container[ClaimName]
) -> Exchange:
    """Return an unanswered exchange, with the ended quota claims that restarted accounts have lost.

    Args:
        told: The exchange.
        number: New number of the exchange.
        lost: Lost reports, each with the claim's total usage.
        live: Names of requested claims that have not ended since.
    """
    ends = {use.name: use for use in lost}
    uses = (*ends.values(), *(use for use in told.uses if use.name not in ends))
    asks = tuple(ask for ask in told.asks if ask.name not in ends or ask.name in live)
    return replace(told, number=number, uses=uses, asks=asks)


def _sum_of_amounts(one: Amounts, other: Amounts) -> Amounts:
    return {unit: one.get(unit, 0) + other.get(unit, 0) for unit in one.keys() | other.keys()}


def limit_of(decision: Decision) -> LimitStanding | None:
    """Return the limit that refuses a quota claim; None if it was not decided in time."""
    return None if decision.refused_by is UNREACHABLE else decision.refused_by


class RecentRefusals:
    """Applications that a quota recently refused to open; the oldest are dropped first."""

    def __init__(self) -> None:
        self._known: dict[ApplicationId, tuple[ApplicationArrived, Decision, Seconds]] = {}

    def note(self, arrival: ApplicationArrived, decision: Decision, now: Seconds) -> None:
        self._known[arrival.application_id] = (arrival, decision, now)
        if len(self._known) > _MOST_REFUSED:
            del self._known[next(iter(self._known))]

    def forget(self, application_id: ApplicationId) -> None:
        """Forget the refusal of an application that is opened again."""
        self._known.pop(application_id, None)

    def decision(self, application_id: ApplicationId) -> Decision | None:
        """Return the refusal of an application; None if it was not refused recently."""
        known = self._known.get(application_id)
        return None if known is None else known[1]

    def unopened(self, application_id: ApplicationId, now: Seconds) -> Unopened | None:
        """Return a refused application, unless its quota is expected to have enough by now."""
        known = self._known.get(application_id)
        if known is None:
            return None
        arrival, decision, at = known
        wait_s, limit = decision.retry_after_s, limit_of(decision)
        comes_back_s = None if wait_s is None else at + wait_s - now
        if comes_back_s is not None and comes_back_s <= 0:
            return None
        return Unopened(arrival, True, None if limit is None else limit.scope, comes_back_s)


def name_of_inference(inference: InferenceSubmitted | Inference) -> ClaimName:
    return f"{inference.application_id}#{inference.inference_id}"
