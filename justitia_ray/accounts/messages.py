"""Messages between a scheduler and the accounts. They carry totals, so repetition is harmless.

A claim is the amount that one application, or one inference, may use of the quotas of its tenant's
nodes. Its name identifies it after a restart, so that it is not counted twice.
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
    """Request to make a claim, or to raise one."""

    name: ClaimName
    tenant: ClientId
    wants: Amounts
    """Total amounts that the claim should hold, with those already used."""
    is_granted: bool = False
    """Whether it was granted before by accounts that may have lost it, or already runs: then no
    quota refuses it."""
    needs: Amounts = field(default_factory=dict)
    """Expected part of each amount: a quota with less left refuses the claim. Amounts not listed
    are needed whole."""


@dataclass(frozen=True, slots=True)
class Use:
    """Report on the usage of a claim."""

    name: ClaimName
    used: Amounts
    """Total usage so far; may exceed what the claim holds, because service is metered late."""
    is_over: bool = False
    """Whether the claim has ended: the unused amount is returned."""
    is_final: bool = False
    """Whether nothing more will be used: the unused amount is returned, but the claim stays until
    it has ended, because a successor may ask for it again."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A scheduler's call to the accounts: `uses` are booked first, then `asks` are answered."""

    scheduler: str
    epoch: Epoch
    """Term of the scheduler."""
    number: int
    """Number of the exchange in the term, from 1. One without an answer is sent again unchanged."""
    uses: tuple[Use, ...] = ()
    asks: tuple[Ask, ...] = ()
    accounts: Epoch = 0
    """Term of the accounts that the scheduler expects; accounts of another term book nothing."""
    wants_nodes: bool = False
    """Whether the answer must include the standing of the nodes."""
    survivors: tuple[ClaimName, ...] | None = None
    """All live claims of this scheduler; others, of earlier terms, are lost. None: not known yet,
    because pending inferences may not all have been submitted again."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Answer to a request for a claim."""

    name: ClaimName
    refused_by: LimitStanding | None = None
    """Limit with too little left; None: the claim holds what it wants."""
    retry_after_s: Seconds | None = None
    """Time until the limit is expected to have enough; None: not known."""
    is_deprioritised: bool = False
    """Whether a quota that deprioritises is exhausted."""
    waits: bool = False
    """For a refusal: whether the claim would fit if the claims in flight use only the expected
    amounts."""
    holds: Amounts = field(default_factory=dict)
    """Total amounts that the claim holds now."""


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """Present state of a quota of a node."""

    unit: Unit
    per: str
    limit: float
    used: float
    """Usage in the window, without claims."""
    claimed: float
    remaining: float
    reset_s: Seconds
    """Time until part of the usage leaves the window; 0 without usage."""
    period_s: Seconds
    on_exhausted: str
    exceeded: int = 0
    """Number of times since the start that something was refused, deprioritised, or would have
    been."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to an exchange."""

    epoch: Epoch
    """Term of the accounts; accounts of another term may have lost earlier grants."""
    verdicts: tuple[Verdict, ...] = ()
    nodes: Mapping[ClientId, tuple[NodeStanding, ...]] = field(default_factory=dict)
    """Nodes whose quotas have usage or claims, up to a bound; empty unless requested."""
    is_stale: bool = False
    """Whether a later exchange of this scheduler is known, so that nothing was booked."""
    is_stored: bool = True
    """Whether all bookings are stored; False: the store cannot be reached, and later accounts may
    not have them."""
    began_with: int = 0
    """Number of the last exchange of the scheduler's term that these accounts found in the store.
    """
