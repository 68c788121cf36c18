"""Messages between a scheduler and the accounts. Totals only: repeating is harmless.

A claim is what one application, or one inference, may use of the quotas of its tenant's nodes. It
has a name, by which it is asked for again after a death without being counted again.
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
    """A claim is to be made, or raised."""

    name: ClaimName
    tenant: ClientId
    wants: Amounts
    """All that it is to hold, with what it has used."""
    is_granted: bool = False
    """Whether it was granted before, by accounts that may have lost it, or runs: nothing refuses
    it."""
    needs: Amounts = field(default_factory=dict)
    """The part of each amount that it is expected to use: a quota refuses it that has less left.
    Amounts that are not named are needed whole."""


@dataclass(frozen=True, slots=True)
class Use:
    """An account of a claim."""

    name: ClaimName
    used: Amounts
    """All that was used of it so far; may be more than it holds, for service is metered late."""
    is_over: bool = False
    """Whether it is at its end: what it holds and has not used comes back."""
    is_final: bool = False
    """Whether nothing more will be used: the rest comes back, and the claim stays until it is
    over, for a successor may ask for it again."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A scheduler's call: first its uses are booked, then its asks are answered, in order."""

    scheduler: str
    epoch: Epoch
    """The scheduler's term."""
    number: int
    """Number of the exchange in the term, from 1. One that got no answer is sent again as it is."""
    uses: tuple[Use, ...] = ()
    asks: tuple[Ask, ...] = ()
    accounts: Epoch = 0
    """Term of the accounts that the scheduler takes these to be; another one books nothing."""
    wants_nodes: bool = False
    """Whether the answer is to have the standing of the nodes."""
    survivors: tuple[ClaimName, ...] | None = None
    """All claims of this scheduler that live; the others, of earlier terms, are lost. None: not
    known yet, for what is pending may not all have been submitted again."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Answer to an ask."""

    name: ClaimName
    refused_by: LimitStanding | None = None
    """The limit that has nothing left; None: the claim holds what it wants."""
    retry_after_s: Seconds | None = None
    """When the limit is expected to have enough; None: not known."""
    is_deprioritised: bool = False
    """Whether a quota that deprioritises is exhausted."""
    waits: bool = False
    """Of a refusal: whether it fits if what is in flight uses what is expected, and no more."""
    holds: Amounts = field(default_factory=dict)
    """All that the claim holds now."""


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """A quota of a node as it stands."""

    unit: Unit
    per: str
    limit: float
    used: float
    """Used in the window, without what is claimed."""
    claimed: float
    remaining: float
    reset_s: Seconds
    """Time until something that was used comes back; 0 if nothing was."""
    period_s: Seconds
    on_exhausted: str
    exceeded: int = 0
    """How often something was refused, deprioritised, or would have been, since the start."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to an exchange."""

    epoch: Epoch
    """The accounts' term: another one may have lost what was granted."""
    verdicts: tuple[Verdict, ...] = ()
    nodes: Mapping[ClientId, tuple[NodeStanding, ...]] = field(default_factory=dict)
    """Nodes with quotas that something is known of, up to a bound; empty unless asked for."""
    is_stale: bool = False
    """Whether a later exchange of this scheduler is known: nothing was booked."""
    is_stored: bool = True
    """Whether all that was booked is stored; False: the store is away, and later accounts may not
    know of it."""
    began_with: int = 0
    """Number of the last exchange of the scheduler's term that these accounts found stored."""
