"""Messages between a scheduler and the accounts actor, which keeps the quotas.

The messages carry totals, so a repeated message is harmless.

A claim is the amount that one application, or one inference, may use of the quotas of its tenant's
nodes. A claim keeps its name over restarts, so that it is not counted twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from justitia_ray.core.limits import LimitStanding
from justitia_ray.core.tenants import Unit
from justitia_ray.units import ClientId, Epoch, Seconds

Amounts = Mapping[Unit, float]
ClaimName = str


@dataclass(frozen=True, slots=True)
class Ask:
    """Request to reserve amounts of quotas (a claim), or to increase an earlier claim."""

    name: ClaimName
    tenant: ClientId
    wants: Amounts
    """Total amounts that the quota claim is to reserve, including amounts already used."""
    is_granted: bool = False
    """Whether quotas must not refuse the claim, because it may have been granted already or its
    inference runs.
    """
    needs: Amounts = field(default_factory=dict)
    """Amounts that the inference is expected to use; a quota with less left refuses the claim.
    Units that are missing here are expected to be used in full.
    """


@dataclass(frozen=True, slots=True)
class Use:
    """Report on the usage under a claim, that is, a reservation of quotas."""

    name: ClaimName
    used: Amounts
    """Total usage so far. It may exceed the reserved amount, because service is metered late."""
    is_over: bool = False
    """Whether the claim on quotas has ended, so that its unused amount is returned."""
    is_final: bool = False
    """Whether the usage of a quota claim is final. Its unused amount is returned, but a successor
    scheduler may still ask for the claim.
    """


@dataclass(frozen=True, slots=True)
class Exchange:
    """Scheduler's message to the quota accounts: first `uses` are booked, then `asks` answered."""

    scheduler: str
    epoch: Epoch
    """Epoch in which the scheduler leads; each new leader has a higher one."""
    number: int
    """Number of the exchange between scheduler and accounts in its epoch, from 1. Without an answer
    it is sent again unchanged.
    """
    uses: tuple[Use, ...] = ()
    asks: tuple[Ask, ...] = ()
    accounts: Epoch = 0
    """Epoch of the accounts actor for which the message is meant; another actor books nothing."""
    wants_nodes: bool = False
    """Whether the answer must include the state of all tenants' quotas."""
    survivors: tuple[ClaimName, ...] | None = None
    """Names of all live quota claims of this scheduler; its other claims count as lost. None: not
    known yet after a restart.
    """


@dataclass(frozen=True, slots=True)
class Verdict:
    """Answer of the quota accounts to an `Ask`, a request to reserve amounts."""

    name: ClaimName
    refused_by: LimitStanding | None = None
    """Quota with too little left for a claim; None if the claim was granted."""
    retry_after_s: Seconds | None = None
    """Seconds until the quota that refused a claim is expected to have enough; None: not known."""
    is_deprioritised: bool = False
    """Whether a quota is exhausted that lowers the priority of calls rather than rejects them."""
    waits: bool = False
    """Whether a refused quota claim may succeed later, when open claims turn out to use only their
    expected amounts.
    """
    holds: Amounts = field(default_factory=dict)
    """Total amounts of quotas that the claim reserves now."""


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """Current state of one quota of a tenant."""

    unit: Unit
    per: str
    limit: float
    used: float
    """Usage in the quota's window, without amounts that are only reserved."""
    claimed: float
    remaining: float
    reset_s: Seconds
    """Seconds until part of a quota's usage leaves its window; 0 without usage."""
    period_s: Seconds
    on_exhausted: str
    exceeded: int = 0
    """How often the quota refused or deprioritised a call since the start; quotas that only log
    count too.
    """


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of the quota accounts to a scheduler's `Exchange`."""

    epoch: Epoch
    """Epoch of the accounts actor. An actor with another epoch may have lost earlier grants."""
    verdicts: tuple[Verdict, ...] = ()
    nodes: Mapping[ClientId, tuple[NodeStanding, ...]] = field(default_factory=dict)
    """States of quotas with usage or claims, at most `MOST_NODES`; empty unless requested."""
    is_stale: bool = False
    """Whether a later exchange of this scheduler has already arrived, so that nothing was booked.
    """
    is_stored: bool = True
    """Whether all bookings are stored. If False, Redis is unreachable, and a restart may lose them.
    """
    began_with: int = 0
    """Number of the scheduler's last exchange that was stored when this accounts actor started."""
