"""Claims of a scheduler on its tenants' quotas, and the way to the accounts that grant them."""

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
from justitia_ray.cost import choices_kv_token_time
from justitia_ray.units import ApplicationId, ClientId, Epoch, RequestId, Seconds, Tokens

RETRY_AFTER_S: Seconds = 5.0
UNREACHABLE = LimitStanding("", "", 0, 0, 0)
"""Stands for the limit of a claim that the accounts have not decided in time."""
_MOST_REFUSED = 10_000
_MOST_TOLD = 100_000
_TOLD_KEPT_S: Seconds = 10.0
"""Longer than a Redis that takes another one's place lags behind."""
_STORED_WITHIN_S: Seconds = 5.0
"""Longest time that a claim which ended is kept at the accounts until its end is stored."""


class Accounts(Protocol):
    """The way to the accounts of the application's quotas."""

    async def configure(self, tenants: Mapping[str, Any]) -> Epoch:
        """Hand over the tree of tenants, as `SchedulingConfig.tenants` has it; return the term.

        Raises:
            AdmissionError: If the accounts cannot be reached.
        """

    async def exchange(self, told: Exchange) -> Answer:
        """Tell what is used, and ask for more.

        Raises:
            AdmissionError: If the accounts cannot be reached.
        """


@dataclass(slots=True, eq=False)
class Claim:
    """The claim of an application, or of one inference, on the quotas of its tenant."""

    name: ClaimName
    application_id: ApplicationId
    tenant: ClientId
    wants: dict[Unit, float]
    """The most that it may use."""
    needs: Mapping[Unit, float] = field(default_factory=dict)
    """What it is expected to use."""
    request_id: RequestId | None = None
    """The inference, if it is the claim of one."""
    holds: Mapping[Unit, float] = field(default_factory=dict)
    told: Mapping[Unit, float] = field(default_factory=dict)
    """Use that the accounts were told of."""
    asks: bool = True
    """Whether the next exchange is to ask for it."""
    is_decided: bool = False
    refused: Decision | None = None
    """Its refusal."""
    waits: Decision | None = None
    """The quota that has too little left until something in flight has ended."""
    in_the_way: tuple[Decision, Seconds] | None = None
    """Of an application: the last refusal of an inference of it, and when, until one is let in."""
    is_deprioritised: bool = False
    may_have_run: bool = False
    """Whether an earlier scheduler may have let it in, and may have died before it said so."""
    has_run: bool = False
    """Whether it is of an inference that has ended: nothing refuses it any more."""
    number: int = 0
    """Its place among the claims of its scheduler, in order."""
    deadline: asyncio.TimerHandle | None = None

    @property
    def is_untold(self) -> bool:
        """Whether it was let in, and the accounts cannot know of it: they did not answer."""
        is_let_in = self.is_decided and self.refused is None
        claims = any(self.wants.values())
        return is_let_in and claims and not self.holds and not self.may_have_run

    def unused(self) -> dict[Unit, float]:
        """Return what was used of it if this scheduler has not let it in."""
        exact = (Unit.APPLICATIONS, Unit.INFERENCES)
        return {unit: 1.0 for unit in exact if self.may_have_run and unit in self.wants}


@dataclass(frozen=True, slots=True)
class Unopened:
    """An application that the quotas have kept from being opened."""

    arrival: ApplicationArrived
    is_refused: bool
    """Whether it was refused; False: it waits for the accounts."""
    node: ClientId | None
    """Node whose quota is in the way; None: not known."""
    comes_back_s: Seconds | None
    """Time until that quota is expected to have enough; None: not known."""
    waiting: int = 0
    """Inferences that are held back with the application."""


_SOMETHING = 1.0
"""What has to be left of a metered unit for an application to be opened."""


def claim_of_application(
    tree: TenantTree, tenant: ClientId
) -> tuple[dict[Unit, float], dict[Unit, float]]:
    """Return what an application claims as it opens, and what has to be left for it.

    Of units that its inferences claim it claims nothing, and asks whether a quota that
    deprioritises is exhausted. It is not opened where nothing of a metered unit is left.
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
    tree: TenantTree, tenant: ClientId, item: InferenceSubmitted
) -> tuple[dict[Unit, float], dict[Unit, float]]:
    """Return what an inference claims: the most that it may use, and what it is expected to use.

    One that is expected to use more than a limit needs all of it; one that is certain to use more
    is never let in.
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
        least, likely, held = (
            _amount(unit, item, output)
            for output in (item.least_output_tokens, expected, max(reserved, expected))
        )
        if unit is Unit.COMPUTED_TOKENS:
            least = float(item.least_output_tokens)  # all of the prompt may be in a cache
        limit = least_limit(tree, tenant, unit)
        needs[unit] = max(least, min(likely, limit))
        wants[unit] = max(held if limit < math.inf else likely, needs[unit])
    return wants, needs


def claim_of_running(
    tree: TenantTree, tenant: ClientId, inference: Inference
) -> tuple[dict[Unit, float], dict[Unit, float]]:
    """Return what an inference claims that was let in before there were quotas."""
    units = units_of(tree, tenant).intersection(METERED)
    most, expected = inference.max_output_tokens, inference.expected_output
    return (
        {unit: _amount(unit, inference, max(most, expected)) for unit in units},
        {unit: _amount(unit, inference, expected) for unit in units},
    )


def _amount(unit: Unit, of: InferenceSubmitted | Inference, output_tokens: Tokens) -> float:
    """Return how much of a metered unit an inference uses with so many output tokens."""
    if unit in (Unit.TOKENS, Unit.COMPUTED_TOKENS):
        return float(of.prompt_tokens + output_tokens)
    return float(choices_kv_token_time(of.prompt_tokens, output_tokens, of.choices))


def units_of(tree: TenantTree, tenant: ClientId) -> set[Unit]:
    """Return the units that quotas of a tenant, or of the nodes above it, count."""
    return {quota.unit for _, node in tree.nodes(tenant) for quota in node.quotas}


def least_limit(tree: TenantTree, tenant: ClientId, unit: Unit) -> float:
    """Return the least of the limits on a unit that refuse a tenant; infinite if none does."""
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
    """Return what an inference has used so far; see `Inference.begun_prompt_tokens`."""
    return {
        Unit.INFERENCES: 1.0,
        Unit.TOKENS: float(inference.begun_prompt_tokens + inference.output_tokens),
        Unit.COMPUTED_TOKENS: float(inference.begun_computed_tokens + inference.output_tokens),
        Unit.KV_TOKEN_TIME: float(inference.attained),
    }


def outrun_by(inference: Inference, claim: Claim) -> dict[Unit, float]:
    """Return what an inference that uses more than it claims is expected to use, by unit."""
    used = used_by(inference)
    total = inference.output_tokens + inference.expected_remaining(inference.output_tokens)
    return {
        unit: max(used[unit], _amount(unit, inference, total))
        for unit in METERED
        if unit in claim.wants and used[unit] > claim.wants[unit]
    }


class EndedClaims:
    """Claims that have ended, until that is stored.

    A successor that knows nothing of an end asks for the claim again, which must be there.
    """

    def __init__(self) -> None:
        self._ended: dict[ClaimName, tuple[Seconds, Use]] = {}

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, use: Use, now: Seconds) -> None:
        """Note the end of a claim."""
        self._ended[use.name] = (now, use)

    def uses(self) -> tuple[Use, ...]:
        """Return all ends."""
        return tuple(use for _, use in self._ended.values())

    def names(self) -> tuple[ClaimName, ...]:
        """Return the names of all."""
        return tuple(self._ended)

    def pop(self, name: ClaimName) -> Use | None:
        """Remove the end of a claim, if it is here, and return it."""
        ended = self._ended.pop(name, None)
        return None if ended is None else ended[1]

    def holds(self, use: Use) -> bool:
        """Return whether this very end is here."""
        return use.name in self._ended and self._ended[use.name][1] is use

    def overdue(self, now: Seconds) -> list[ClaimName]:
        """Return the claims that are kept for as long as one is."""
        return [name for name, (at, _) in self._ended.items() if now - at > _STORED_WITHIN_S]

    def clear(self) -> None:
        """Forget all."""
        self._ended.clear()


@dataclass(slots=True)
class _Told:
    """The end of a claim, as the accounts are told of it."""

    tenant: ClientId
    claimed: Amounts
    """What the claim had of what was used."""
    use: Use
    number: int
    """The exchange that tells of it."""
    at: Seconds


class LatelyTold:
    """Ends of claims that later accounts may not know of, though these were told.

    They died while their store was away, or the store itself has lost its last moments: a replica
    that lags behind has taken the place of a Redis.
    """

    def __init__(self) -> None:
        self._ends = count()
        self._told: dict[int, _Told] = {}
        """By place in the order of the ends: a name may be used again before an end is stored."""
        self._last: dict[ClaimName, int] = {}
        """The last end of each name."""

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._told)

    def add(self, claim: Claim, use: Use, number: int, now: Seconds) -> None:
        """Note the end of a claim, if something was used of it, and the exchange that tells it."""
        units = claim.wants.keys() | claim.holds.keys()
        claimed = {unit: used for unit, used in use.used.items() if used and unit in units}
        if claimed:
            self._put(_Told(claim.tenant, claimed, use, number, now))
            if len(self._told) > _MOST_TOLD:
                self._forget(next(iter(self._told)))
        else:
            self._last.pop(use.name, None)  # what is over next is this one, of which none is here

    def note_over(self, use: Use, number: int, now: Seconds) -> None:
        """Note that an exchange tells that a claim is over whose end was told before."""
        place = self._last.get(use.name)
        if place is not None:
            told = self._forget(place)
            self._put(_Told(told.tenant, told.claimed, use, number, now))

    def note_stored(self, number: int, now: Seconds) -> None:
        """Forget what was stored some time ago; all exchanges up to this one are stored."""
        while self._told:
            place, oldest = next(iter(self._told.items()))
            if oldest.number > number or now - oldest.at <= _TOLD_KEPT_S:
                return
            self._forget(place)

    def after(self, number: int) -> list[Use]:
        """Return the ends that were told after this exchange; those of one name are one."""
        return list({told.use.name: told.use for told in self._merged(number)}.values())

    def asks(self, number: int) -> tuple[Ask, ...]:
        """Return what makes claims of what was used by the ends that `after` returns.

        Of a name that another tenant has used since, that is counted as the name changes hands.
        """
        return tuple(
            Ask(told.use.name, told.tenant, told.claimed, is_granted=True)
            for told in self._merged(number)
        )

    def renumber(self, after: int, number: int) -> None:
        """Note that another exchange tells of what was told after this one."""
        for told in self._after(after):
            told.number = number

    def _after(self, number: int) -> list[_Told]:
        return [told for told in self._told.values() if told.number > number]

    def _merged(self, number: int) -> list[_Told]:
        """Return what was told after this exchange, one for each name and tenant that follow."""
        merged: list[_Told] = []
        places: dict[ClaimName, int] = {}
        for told in self._after(number):
            place = places.get(told.use.name)
            if place is None or merged[place].tenant != told.tenant:
                places[told.use.name] = len(merged)
                merged.append(told)
                continue
            claimed = _sum(merged[place].claimed, told.claimed)
            use = replace(told.use, used=_sum(merged[place].use.used, told.use.used))
            merged[place] = replace(told, claimed=claimed, use=use)
        return merged

    def _put(self, told: _Told) -> None:
        place = self._last[told.use.name] = next(self._ends)
        self._told[place] = told

    def _forget(self, place: int) -> _Told:
        told = self._told.pop(place)
        if self._last.get(told.use.name) == place:
            del self._last[told.use.name]
        return told

    def clear(self) -> None:
        """Forget all."""
        self._told.clear()
        self._last.clear()


def retold(
    told: Exchange, number: int, lost: Iterable[Use], live: Container[ClaimName]
) -> Exchange:
    """Return an exchange that had no answer as it is told to accounts that have lost these ends.

    Args:
        told: The exchange.
        number: Its number from now on.
        lost: The ends, with all that they had of it.
        live: Claims of its asks that have not ended since.
    """
    ends = {use.name: use for use in lost}
    uses = (*ends.values(), *(use for use in told.uses if use.name not in ends))
    asks = tuple(ask for ask in told.asks if ask.name not in ends or ask.name in live)
    return replace(told, number=number, uses=uses, asks=asks)


def _sum(one: Amounts, other: Amounts) -> Amounts:
    return {unit: one.get(unit, 0) + other.get(unit, 0) for unit in one.keys() | other.keys()}


def limit_of(decision: Decision) -> LimitStanding | None:
    """Return the limit that refuses a claim; None if the accounts could not be asked in time."""
    return None if decision.refused_by is UNREACHABLE else decision.refused_by


class LatelyRefused:
    """Applications that a quota refused lately, before they were opened; the oldest go first."""

    def __init__(self) -> None:
        self._known: dict[ApplicationId, tuple[ApplicationArrived, Decision, Seconds]] = {}

    def note(self, arrival: ApplicationArrived, decision: Decision, now: Seconds) -> None:
        """Remember a refusal."""
        self._known[arrival.application_id] = (arrival, decision, now)
        if len(self._known) > _MOST_REFUSED:
            del self._known[next(iter(self._known))]

    def forget(self, application_id: ApplicationId) -> None:
        """Forget an application that comes again, if it is known."""
        self._known.pop(application_id, None)

    def decision(self, application_id: ApplicationId) -> Decision | None:
        """Return the refusal of an application; None: it was not refused lately."""
        known = self._known.get(application_id)
        return None if known is None else known[1]

    def unopened(self, application_id: ApplicationId, now: Seconds) -> Unopened | None:
        """Return an application that was refused, unless its quota should have enough by now."""
        known = self._known.get(application_id)
        if known is None:
            return None
        arrival, decision, at = known
        wait_s, limit = decision.retry_after_s, limit_of(decision)
        comes_back_s = None if wait_s is None else at + wait_s - now
        if comes_back_s is not None and comes_back_s <= 0:
            return None
        return Unopened(arrival, True, None if limit is None else limit.scope, comes_back_s)
