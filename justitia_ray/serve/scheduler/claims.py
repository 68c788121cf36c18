"""Claims of a scheduler on its tenants' quotas, and the way to the accounts that grant them."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from justitia_ray.accounts.messages import Answer, ClaimName, Exchange, Use
from justitia_ray.accounts.messages import Verdict as Decision
from justitia_ray.core.events import ApplicationArrived
from justitia_ray.core.limits import LimitStanding
from justitia_ray.core.state import State
from justitia_ray.core.tenants import TenantTree, Unit
from justitia_ray.units import ApplicationId, ClientId, Epoch, RequestId, Seconds

RETRY_AFTER_S: Seconds = 5.0
UNREACHABLE = LimitStanding("", "", 0, 0, 0)
"""Stands for the limit of a claim that the accounts have not decided in time."""
_MOST_REFUSED = 10_000
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
    request_id: RequestId | None = None
    """The inference, if it is the claim of one."""
    holds: Mapping[Unit, float] = field(default_factory=dict)
    told: Mapping[Unit, float] = field(default_factory=dict)
    """Use that the accounts were told of."""
    asks: bool = True
    """Whether the next exchange is to ask for it."""
    is_decided: bool = False
    refused: Decision | None = None
    """Last refusal; of a claim that was granted before, it has outrun it."""
    is_deprioritised: bool = False
    may_have_run: bool = False
    """Whether an earlier scheduler may have let it in, and may have died before it said so."""
    has_run: bool = False
    """Whether it is of an inference that has ended: nothing refuses it any more."""
    deadline: asyncio.TimerHandle | None = None

    @property
    def is_untold(self) -> bool:
        """Whether it was let in, and the accounts cannot know of it: they did not answer."""
        is_let_in = self.is_decided and self.refused is None
        return is_let_in and not self.holds and not self.may_have_run

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


def first_want(tree: TenantTree, arrival: ApplicationArrived, unit: Unit) -> float:
    """Return what an application claims as it opens: no more than there may be at once."""
    if unit is Unit.APPLICATIONS:
        return 1.0
    predicted = arrival.reserve_tokens
    if unit is Unit.KV_TOKEN_TIME:
        predicted = arrival.reserve_kv_token_time
        predicted = arrival.predicted_kv_token_time if predicted is None else predicted
    return min(predicted or 0.0, least_limit(tree, arrival.tenant, unit))


def least_limit(tree: TenantTree, tenant: ClientId, unit: Unit) -> float:
    """Return the least of the limits on a unit that bind a tenant, of which there is one."""
    nodes = tree.nodes(tenant)
    return min(q.limit for _, node in nodes for q in node.quotas if q.unit is unit)


def used_of(claim: Claim, state: State) -> dict[Unit, float] | None:
    """Return what was used of a claim; None of an inference that is not in the core any more."""
    if claim.request_id is not None:
        if not claim.is_decided:
            return {}
        return {Unit.INFERENCES: 1.0} if claim.request_id in state.inferences else None
    application = state.applications.get(claim.name)
    if application is None:
        return {}
    return {
        Unit.APPLICATIONS: 1.0,
        Unit.TOKENS: float(application.prompt_tokens + application.output_tokens),
        Unit.KV_TOKEN_TIME: float(application.kv_token_time),
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
