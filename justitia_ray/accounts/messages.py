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
    """Request to create a claim on quotas, or to increase a claim."""

    name: ClaimName
    tenant: ClientId
    wants: Amounts
    """Total amounts that the claim is to reserve, including amounts already used."""
    is_granted: bool = False
    """Whether an earlier term may have granted the claim, or its inference already runs: then no
    quota refuses it."""
    needs: Amounts = field(default_factory=dict)
    """Expected part of each amount of `wants`: a quota with less left refuses the claim. Amounts
    that are not listed are expected to be used in full.
    """


@dataclass(frozen=True, slots=True)
class Use:
    """Report on the usage under a claim."""

    name: ClaimName
    used: Amounts
    """Total usage so far; may exceed the amount reserved by the claim, as service is metered late.
    """
    is_over: bool = False
    """Whether the claim has ended: the unused amount is returned."""
    is_final: bool = False
    """Whether the usage is final: the unused amount is returned, but the claim remains until it has
    ended, because a successor may ask for it again."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A scheduler's message to the accounts: `uses` are booked first, then `asks` are answered."""

    scheduler: str
    epoch: Epoch
    """Epoch of the scheduler's term."""
    number: int
    """Number of the exchange in the term, from 1. An exchange without answer is sent again
    unchanged.
    """
    uses: tuple[Use, ...] = ()
    asks: tuple[Ask, ...] = ()
    accounts: Epoch = 0
    """Epoch of the accounts' term that the scheduler expects; accounts of another term book
    nothing.
    """
    wants_nodes: bool = False
    """Whether the answer must include the state of the nodes' quotas."""
    survivors: tuple[ClaimName, ...] | None = None
    """Names of all live claims of this scheduler; its claims of earlier terms that are not named
    count as lost. None: not known yet, because pending inferences may not all have been submitted
    again.
    """


@dataclass(frozen=True, slots=True)
class Verdict:
    """Answer to an `Ask`."""

    name: ClaimName
    refused_by: LimitStanding | None = None
    """Quota with too little left; None if the claim was granted."""
    retry_after_s: Seconds | None = None
    """Seconds until the refusing quota is expected to have enough; None: not known."""
    is_deprioritised: bool = False
    """Whether a quota that deprioritises, rather than rejects, is exhausted."""
    waits: bool = False
    """Whether a refused claim may succeed later, because it would fit if all open claims used only
    their expected amounts.
    """
    holds: Amounts = field(default_factory=dict)
    """Total amounts that the claim reserves now."""


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """Current state of one quota of a node."""

    unit: Unit
    per: str
    limit: float
    used: float
    """Usage in the quota's window, without unused claims."""
    claimed: float
    remaining: float
    reset_s: Seconds
    """Seconds until part of the usage leaves the window; 0 without usage."""
    period_s: Seconds
    on_exhausted: str
    exceeded: int = 0
    """Number of refusals and deprioritisations since the start, including those of shadow
    quotas."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to an exchange."""

    epoch: Epoch
    """Epoch of the accounts' term; accounts of another term may have lost earlier grants."""
    verdicts: tuple[Verdict, ...] = ()
    nodes: Mapping[ClientId, tuple[NodeStanding, ...]] = field(default_factory=dict)
    """Quota states of nodes with usage or claims, at most `MOST_NODES`; empty unless requested."""
    is_stale: bool = False
    """Whether a later exchange of this scheduler has arrived, so that nothing was booked."""
    is_stored: bool = True
    """Whether all bookings are stored; False: the store is unreachable, and accounts of a later
    term may miss them."""
    began_with: int = 0
    """Number of the scheduler's last exchange that was in the store when these accounts started."""
