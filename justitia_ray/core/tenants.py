"""The tree of tenants: weights, shares of the KV memory, quotas and caps of every node.

A tenant is a path, `acme/search/alice`; its nodes are `acme`, `acme/search` and itself. A node that
nobody has described has the settings that its parent gives to children (`acme/*`; `*` for those
at the top), or none. A node is bound by all its ancestors: by naming tenants below its own nobody
gets more than the node above them has.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from justitia_ray.errors import ConfigError
from justitia_ray.units import ClientId, KvTokenTime, Seconds

SEPARATOR = "/"
ANY = "*"
"""Last part of the path that describes the children of a node that nobody has described."""


class Unit(StrEnum):
    """Unit that a quota counts."""

    KV_TOKEN_TIME = "kv_token_time"
    TOKENS = "tokens"
    COMPUTED_TOKENS = "computed_tokens"
    """Tokens without those of prompts that were in an engine's prefix cache."""
    INFERENCES = "inferences"
    APPLICATIONS = "applications"


METERED = (Unit.TOKENS, Unit.COMPUTED_TOKENS, Unit.KV_TOKEN_TIME)
"""Units of which an inference claims what it may use, for it is known at its end only."""


class OnExhausted(StrEnum):
    """Fate of an application that a quota has nothing left for."""

    REJECT = "reject"
    DEPRIORITISE = "deprioritise"
    """The application runs behind all that have quota (`beyond`): nothing is refused."""
    SHADOW = "shadow"
    """Nothing; it is reported that something would have."""


LEAST_WEIGHT = 1e-6
"""Factor of the weight of what runs beyond a quota that deprioritises, without shares by tenant."""
BEYOND = "."
"""Top of the second tree of accounts: of what runs beyond a quota. No tenant can have the name."""


class Period(StrEnum):
    """Period of a quota."""

    SECOND = "second"
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


class Window(StrEnum):
    """Where the period of a quota begins."""

    ROLLING = "rolling"
    """At every instant: what was used a period ago comes back."""
    CALENDAR = "calendar"
    """With the day or the month in UTC."""


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit on what a node uses in a period, over all models."""

    unit: Unit
    limit: float
    per: Period
    window: Window = Window.ROLLING
    on_exhausted: OnExhausted = OnExhausted.REJECT
    reserve_quantile: float = 1.0
    """Quantile of an inference's predicted use that is reserved while it runs; 1: its most."""

    @property
    def name(self) -> str:
        """Name among the quotas of its node: unit and period."""
        return f"{self.unit}/{self.per}"


@dataclass(frozen=True, slots=True)
class ApplicationCaps:
    """The most that one application may use; None is no cap."""

    inferences: int | None = None
    kv_token_time: KvTokenTime | None = None
    seconds: Seconds | None = None


@dataclass(frozen=True, slots=True)
class KvShare:
    """A node's share of the KV memory of all replicas of a model, as fractions of 1."""

    guaranteed: float = 0.0
    """Share that is the node's own: others may use it as far as it lends."""
    most: float = 1.0
    """The most that it may hold, while others wait or not."""
    lends: float = 1.0
    """Fraction of its guaranteed share that others may use while it does not."""


@dataclass(frozen=True, slots=True)
class TenantNode:
    """Settings of a node. None: as the node's parent gives it, or no limit."""

    weight: float | None = None
    """Weight among its siblings. None: that of its applications, 1 for a node with children."""
    max_weight: float | None = None
    """Largest weight that its applications may ask for."""
    kv_share: KvShare = KvShare()
    quotas: tuple[Quota, ...] = ()
    caps: ApplicationCaps = ApplicationCaps()
    deadline_s: Seconds | None = None
    """How long an application's inferences may wait if the call does not say."""


PLAIN = TenantNode()
"""A node that nobody has described."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A service tier of a request: a factor of its application's weight, never strict order."""

    weight_factor: float = 1.0
    kv_share: KvShare = KvShare()
    """Share of the KV memory for its applications, of all tenants together."""


DEFAULT_TIER = "default"
TIERS: Mapping[str, Tier] = {
    "flex": Tier(0.1),
    DEFAULT_TIER: Tier(),
    "priority": Tier(4.0),
}


@dataclass(frozen=True)
class TenantTree:
    """The described nodes, and what becomes of all others.

    Raises:
        ConfigError: If a child would exceed its parent; names both and the values.
    """

    described: Mapping[str, TenantNode] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights, once they have children, of nodes that are given none by `described`; 1 of others.
    Without children they weigh what their applications do."""

    def __post_init__(self) -> None:
        for path, node in self.described.items():
            self._check(path, node)
        self._check_guaranteed()

    def node(self, path: ClientId) -> TenantNode:
        """Return the settings of a node, described or not."""
        described_as = self.described_as(path)
        return PLAIN if described_as is None else self.described[described_as]

    def described_as(self, path: ClientId) -> str | None:
        """Return the path or the pattern that describes a node; None: nobody has described it."""
        if path in self.described:
            return path
        parent, _, _ = path.rpartition(SEPARATOR)
        pattern = f"{parent}{SEPARATOR}{ANY}" if parent else ANY
        return pattern if pattern in self.described else None

    def lowest_described(self, tenant: ClientId) -> str | None:
        """Return the path or pattern of a tenant's lowest node that is described; None: none is."""
        described = (self.described_as(path) for path in reversed(ancestors(tenant)))
        return next((one for one in described if one is not None), None)

    def nodes(self, tenant: ClientId) -> Iterator[tuple[ClientId, TenantNode]]:
        """Yield a tenant's nodes with their paths, from the top to itself."""
        for path in ancestors(tenant):
            yield path, self.node(path)

    def branch_weight(self, path: ClientId) -> float:
        """Return the weight of a node that has children, among its siblings.

        If nobody has given it one, it is no more than its applications may ask for: a caller that
        names tenants below its own must not weigh more by it.
        """
        weight = self.node(path).weight
        if weight is not None:
            return weight
        caps = [node.max_weight for _, node in self.nodes(path) if node.max_weight is not None]
        return min([self.weights.get(path, 1), *caps])

    def deadline_s(self, tenant: ClientId) -> Seconds | None:
        """Return the tightest deadline of a tenant's nodes; None: none has any."""
        deadlines = (node.deadline_s for _, node in self.nodes(tenant))
        return min((one for one in deadlines if one is not None), default=None)

    def _check(self, path: str, node: TenantNode) -> None:
        share, where = node.kv_share, f"tenants.{path}"
        _refuse_above(f"{where}.kv_share: guaranteed", share.guaranteed, "`max`", share.most)
        _refuse_above(f"{where}: weight", node.weight, "max_weight", node.max_weight)
        names = [quota.name for quota in node.quotas]
        if len(set(names)) < len(names):
            raise ConfigError(f"tenants.{path}.quotas: one for each unit and period is allowed")
        if path.rpartition(SEPARATOR)[2] == ANY and share.guaranteed:
            raise ConfigError(
                f"tenants.{path}.kv_share: guaranteed is {share.guaranteed:g}: only 0 is allowed,"
                " for there may be any number of such nodes"
            )
        parent_path = path.rpartition(SEPARATOR)[0]
        if not parent_path:
            return
        parent, parents = self.node(parent_path), f"that of {parent_path}"
        if share.most < 1:
            _refuse_above(f"{where}.kv_share: max", share.most, parents, parent.kv_share.most)
        _refuse_above(f"{where}: max_weight", node.max_weight, parents, parent.max_weight)
        above = {quota.name: quota.limit for quota in parent.quotas}
        for quota in node.quotas:
            most = above.get(quota.name)
            _refuse_above(f"{where}.quotas: {quota.name}", quota.limit, parents, most)

    def _check_guaranteed(self) -> None:
        """Refuse guaranteed shares of children that are more than their parent's in sum."""
        sums: dict[str, float] = {}
        for path, node in self.described.items():
            parent = path.rpartition(SEPARATOR)[0]
            sums[parent] = sums.get(parent, 0.0) + node.kv_share.guaranteed
        for parent, total in sums.items():
            most = self.node(parent).kv_share.guaranteed if parent else 1.0
            if total > most + 1e-9:
                where = f"below {parent}" if parent else "at the top"
                raise ConfigError(
                    f"tenants: kv_share.guaranteed of the nodes {where} is {total:g} in sum: at"
                    f" most {most:g} is allowed"
                )


def _refuse_above(what: str, value: float | None, whose: str, most: float | None) -> None:
    """Refuse a value above the limit that another sets; None: there is no value, or no limit."""
    if value is not None and most is not None and value > most:
        raise ConfigError(f"{what} is {value:g}: at most {whose}, {most:g}, is allowed")


def check_guaranteed(tree: TenantTree, tiers: Mapping[str, Tier]) -> None:
    """Refuse shares of tiers that are more than all memory, with those of the nodes at the top.

    What a tier is guaranteed may be used by any tenant's applications of it, and what a tenant is
    guaranteed by its applications of any tier: both hold only if there is memory for both.

    Raises:
        ConfigError: If they are; names the tiers and the sums.
    """
    for name, tier in tiers.items():
        share = tier.kv_share
        where = f"tiers.{name}.kv_share: guaranteed"
        _refuse_above(where, share.guaranteed, "`max`", share.most)
    of_tiers = {n: t.kv_share.guaranteed for n, t in tiers.items() if t.kv_share.guaranteed}
    of_tenants = sum(
        node.kv_share.guaranteed for path, node in tree.described.items() if SEPARATOR not in path
    )
    total = sum(of_tiers.values()) + of_tenants
    if of_tiers and total > 1 + 1e-9:
        named = ", ".join(f"{name} {share:g}" for name, share in of_tiers.items())
        raise ConfigError(
            f"tiers: kv_share.guaranteed is {total:g} in sum ({named}, and {of_tenants:g} of"
            " tenants at the top): at most 1 is allowed"
        )


def beyond(tenant: ClientId) -> ClientId:
    """Return the leaf of what a tenant runs beyond a quota, in the second tree of accounts."""
    return f"{BEYOND}{SEPARATOR}{tenant}"


def described_by(path: ClientId) -> ClientId:
    """Return the path of the tenants' tree by which a node of the accounts is described."""
    return path.removeprefix(f"{BEYOND}{SEPARATOR}")


@lru_cache(maxsize=16_384)
def ancestors(tenant: ClientId) -> tuple[ClientId, ...]:
    """Return the paths of a tenant's nodes, from the top to itself: `a`, `a/b`, `a/b/c`."""
    parts = tenant.split(SEPARATOR)
    return tuple(SEPARATOR.join(parts[: depth + 1]) for depth in range(len(parts)))
