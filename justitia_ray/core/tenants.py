"""The tree of tenants: weights, shares of the KV memory, quotas and caps of every node.

A tenant is a path, `acme/search/alice`; its nodes are `acme`, `acme/search` and itself. A node that
the configuration does not describe has the settings that its parent gives to children (`acme/*`;
`*` at the top), or none. The limits of all its ancestors apply to a node: a tenant gains nothing by
naming tenants below its own node.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from justitia_ray.errors import ConfigError
from justitia_ray.units import ClientId, KvTokenTime, Seconds

SEPARATOR = "/"
ANY = "*"
"""Last part of the path `parent/*`, which describes all children without a description of their
own.
"""


class Unit(StrEnum):
    """Unit in which a quota counts usage."""

    KV_TOKEN_TIME = "kv_token_time"
    TOKENS = "tokens"
    COMPUTED_TOKENS = "computed_tokens"
    """Tokens, except prompt tokens that were in an engine's prefix cache."""
    INFERENCES = "inferences"
    APPLICATIONS = "applications"


METERED = (Unit.TOKENS, Unit.COMPUTED_TOKENS, Unit.KV_TOKEN_TIME)
"""Units of quotas from which a running inference reserves its possible use, because its use is
known only at the end.
"""


class OnExhausted(StrEnum):
    """Treatment of an application whose quota is exhausted."""

    REJECT = "reject"
    DEPRIORITISE = "deprioritise"
    """The application runs behind all applications within quota; no inference is refused."""
    SHADOW = "shadow"
    """The application runs as before; the service only reports that the quota would have applied.
    """


LEAST_WEIGHT = 1e-6
"""Factor on the weight of applications beyond a deprioritising quota, without fairness between
tenants.
"""
BEYOND = "."
"""Top of the second tree of accounts, for applications beyond a quota. No tenant can have this
name.
"""


class Period(StrEnum):
    SECOND = "second"
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


class Window(StrEnum):
    """How the beginning of a quota's period is determined."""

    ROLLING = "rolling"
    """Sliding window: usage counts for one period after it happened."""
    CALENDAR = "calendar"
    """The period starts with the day or the month in UTC."""


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit on the usage of a tenant in a period, over all models."""

    unit: Unit
    limit: float
    per: Period
    window: Window = Window.ROLLING
    on_exhausted: OnExhausted = OnExhausted.REJECT
    reserve_quantile: float = 1.0
    """Quantile of an inference's predicted usage that is reserved while it runs; 1: its maximum."""

    @property
    def name(self) -> str:
        """Return the unit and period of the quota, its name among the quotas of its tenant."""
        return f"{self.unit}/{self.per}"


@dataclass(frozen=True, slots=True)
class ApplicationCaps:
    """Limits on the usage of one application; None: no limit."""

    inferences: int | None = None
    kv_token_time: KvTokenTime | None = None
    seconds: Seconds | None = None


@dataclass(frozen=True, slots=True)
class KvShare:
    """A tenant's share of the KV memory of all replicas of a model, as fractions of 1."""

    guaranteed: float = 0.0
    """Share of the KV memory reserved for the tenant; others may use the part that it lends."""
    most: float = 1.0
    """Largest share of the KV memory that the tenant may use, even if no other waits."""
    lends: float = 1.0
    """Fraction of the guaranteed share that other tenants may use while the tenant does not use it.
    """


@dataclass(frozen=True, slots=True)
class TenantNode:
    """Settings of a tenant. None: inherited from the parent, or no limit."""

    weight: float | None = None
    """Weight of the tenant among its siblings. None: the weight of its applications; 1 for a tenant
    with children.
    """
    max_weight: float | None = None
    """Largest weight that an application of the tenant may request."""
    kv_share: KvShare = KvShare()
    quotas: tuple[Quota, ...] = ()
    caps: ApplicationCaps = ApplicationCaps()
    deadline_s: Seconds | None = None
    """Longest wait in seconds of an inference whose call sets no deadline."""


PLAIN = TenantNode()
"""Settings of a tenant that the configuration does not describe."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A service tier of a request: a factor on its application's weight, never strict priority."""

    weight_factor: float = 1.0
    kv_share: KvShare = KvShare()
    """Share of the KV memory for the tier's applications, over all tenants together."""


DEFAULT_TIER = "default"
TIERS: Mapping[str, Tier] = {
    "flex": Tier(0.1),
    DEFAULT_TIER: Tier(),
    "priority": Tier(4.0),
}


@dataclass(frozen=True)
class TenantTree:
    """Settings of the tenants that the configuration describes, and defaults for all others.

    Raises:
        ConfigError: If the settings of a child exceed its parent's; the message names both and the
            values.
    """

    described: Mapping[str, TenantNode] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights of tenants with children that have none in `described`; default 1. Tenants without
    children have the weight of their applications.
    """

    def __post_init__(self) -> None:
        for path, node in self.described.items():
            self._check_node(path, node)
        self._check_guaranteed()

    def node(self, path: ClientId) -> TenantNode:
        """Return the settings of a tenant, its own or the inherited ones."""
        described_as = self.describing_path(path)
        return PLAIN if described_as is None else self.described[described_as]

    def describing_path(self, path: ClientId) -> str | None:
        """Return the path or pattern in the configuration that describes a tenant, or None."""
        if path in self.described:
            return path
        parent, _, _ = path.rpartition(SEPARATOR)
        pattern = f"{parent}{SEPARATOR}{ANY}" if parent else ANY
        return pattern if pattern in self.described else None

    def lowest_describing_path(self, tenant: ClientId) -> str | None:
        """Return the lowest path or pattern in the configuration that describes a tenant.

        None if none is described.
        """
        described = (self.describing_path(path) for path in reversed(ancestors(tenant)))
        return next((one for one in described if one is not None), None)

    def nodes(self, tenant: ClientId) -> Iterator[tuple[ClientId, TenantNode]]:
        """Yield the nodes of a tenant's path with their settings, from the top down."""
        for path in ancestors(tenant):
            yield path, self.node(path)

    def branch_weight(self, path: ClientId) -> float:
        """Return the weight of a tenant with children, among its siblings.

        If none is configured, it is at most the weight that the node's applications may request: a
        caller must not gain weight by naming tenants below its own.
        """
        weight = self.node(path).weight
        if weight is not None:
            return weight
        caps = [node.max_weight for _, node in self.nodes(path) if node.max_weight is not None]
        return min([self.weights.get(path, 1), *caps])

    def deadline_s(self, tenant: ClientId) -> Seconds | None:
        """Return the tightest deadline in seconds on a tenant's path; None without deadlines."""
        deadlines = (node.deadline_s for _, node in self.nodes(tenant))
        return min((one for one in deadlines if one is not None), default=None)

    def _check_node(self, path: str, node: TenantNode) -> None:
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
        """Reject guaranteed shares of children whose sum exceeds their parent's."""
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
    """Raise if a value exceeds a limit. None is no value, or no limit."""
    if value is not None and most is not None and value > most:
        raise ConfigError(f"{what} is {value:g}: at most {whose}, {most:g}, is allowed")


def check_guaranteed(tree: TenantTree, tiers: Mapping[str, Tier]) -> None:
    """Reject guaranteed shares of tiers and topmost tenants that together exceed all memory.

    A tier's guaranteed memory may be used by any tenant, and a tenant's by any tier: both
    guarantees hold only if there is memory for both.

    Raises:
        ConfigError: If they exceed all memory; the message names the tiers and the sums.
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
    """Return the leaf of a tenant's applications beyond quota, in the second tree of accounts."""
    return f"{BEYOND}{SEPARATOR}{tenant}"


def settings_path(path: ClientId) -> ClientId:
    """Return the path of the tenant whose settings apply to a node of the accounts."""
    return path.removeprefix(f"{BEYOND}{SEPARATOR}")


@lru_cache(maxsize=16_384)
def ancestors(tenant: ClientId) -> tuple[ClientId, ...]:
    """Return the paths of a tenant's nodes, from the top to itself: `a`, `a/b`, `a/b/c`."""
    parts = tenant.split(SEPARATOR)
    return tuple(SEPARATOR.join(parts[: depth + 1]) for depth in range(len(parts)))
