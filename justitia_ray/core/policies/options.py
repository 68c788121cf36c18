"""Options of policies: declared once, parsed from a mapping, every error naming what is allowed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from justitia_ray.cost import CostFunction, find_cost
from justitia_ray.errors import ConfigError

UNLIMITED = "unlimited"
_LARGEST = 1e300
"""An int beyond the floats is no number either."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option."""

    name: str
    default: Any
    parse: Callable[[Any], Any]
    """Returns the value to use; raises ValueError, saying what is allowed."""


def one_of(*allowed: str) -> Callable[[Any], str]:
    """Return a parser that takes one of these names."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"is not one of {', '.join(allowed)}")
        return value

    return parse


def number(
    above: float | None = None, least: float | None = None, most: float | None = None
) -> Callable[[Any], float]:
    """Return a parser that takes a finite number in a range."""
    bounds = [
        f"{words} {bound:g}"
        for words, bound in (("above", above), ("at least", least), ("at most", most))
        if bound is not None
    ]

    def parse(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("is not a number")
        if not (
            abs(value) <= _LARGEST
            and (above is None or value > above)
            and (least is None or value >= least)
            and (most is None or value <= most)
        ):
            raise ValueError(f"must be finite{''.join(f' and {bound}' for bound in bounds)}")
        return float(value)

    return parse


def whole(least: int, *, or_unlimited: bool = False) -> Callable[[Any], int | None]:
    """Return a parser that takes a whole number, or `unlimited` (None) if that is allowed."""
    allowed = f"a whole number of at least {least}" + (f" or {UNLIMITED}" if or_unlimited else "")

    def parse(value: Any) -> int | None:
        if or_unlimited and value == UNLIMITED:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"must be {allowed}")
        return value

    return parse


def cost_name(value: Any) -> str:
    """Take the name of a cost function, or the import path of a user's own."""
    if not isinstance(value, str):
        raise ValueError("is not the name of a cost function")
    find_cost(value)
    return value


UNIT = Option("unit", "application", one_of("application", "tenant"))
"""What a policy that compares clients takes for one."""

COMMON: tuple[Option, ...] = (
    Option("clock", "served", one_of("served", "nominal", "unsettled")),
    Option("nominal_iteration_s", 0.03, number(above=0)),
    Option("cost", None, cost_name),
    Option("fairness", "application", one_of("application", "tenant")),
    Option("backfill", 0, whole(0, or_unlimited=True)),
    Option("kv_share_cap", 1.0, number(least=0.5, most=1)),
)


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """Parsed options. The accounts and the room are kept for every policy, so all take those."""

    clock: str = "served"
    """What moves V: delivered service, or time at the nominal rate (the paper's); `unsettled`: the
    first without settling, for studies."""
    nominal_iteration_s: float = 0.03
    """Seconds of a decode iteration, for the nominal clock: v1, Sec. V measures about 30 ms."""
    cost: str = "kv_token_time"
    """Name of the cost function that the policy charges by."""
    fairness: str = "application"
    """Between whom the accounts share: applications, or tenants and then their applications."""
    backfill: int | None = 0
    """How often the first in line may be passed by what fits while it does not; None: no limit."""
    kv_share_cap: float = 1.0
    """Share of a replica's KV that one application may hold while others wait."""
    accounts_cost: str = "kv_token_time"
    """Name of the cost function that the accounts are kept in."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Options of this policy alone."""

    @property
    def cost_function(self) -> CostFunction:
        """h(p, d) of the option `cost`."""
        return find_cost(self.cost)

    @property
    def accounts_kind(self) -> str:
        """The kind of accounts: clock, and fairness and cost where they are not the default."""
        fairness = [self.fairness] if self.fairness != "application" else []
        cost = [self.accounts_cost] if self.accounts_cost != "kv_token_time" else []
        return " ".join([self.clock, *fairness, *cost])

    def same_accounts(self, other: "PolicyOptions") -> bool:
        """Return whether accounts kept under the one can go on under the other."""
        ours = (self.clock, self.fairness, self.accounts_cost)
        if ours != (other.clock, other.fairness, other.accounts_cost):
            return False
        return self.clock == "served" or self.nominal_iteration_s == other.nominal_iteration_s


class Declares(Protocol):
    """What a policy says of its options."""

    OPTIONS: ClassVar[tuple[Option, ...]]
    DEFAULT_COST: ClassVar[str]
    ACCOUNTS_IN_COST: ClassVar[bool]


def parse(policy: type[Declares], values: Mapping[str, object]) -> PolicyOptions:
    """Check the options of a policy.

    Raises:
        ConfigError: If an option or a value is not one of those allowed.
    """
    declared = policy.OPTIONS
    known = {option.name: option for option in (*COMMON, *declared)}
    for name in values:
        if name not in known:
            raise ConfigError(f"policy_options: {name!r} is not one of {', '.join(known)}")
    parsed = {}
    for name, option in known.items():
        parsed[name] = option.default
        if name in values:
            try:
                parsed[name] = option.parse(values[name])
            except (ValueError, ConfigError) as error:
                raise ConfigError(f"policy_options.{name}: {values[name]!r} {error}") from error
    own = {option.name: parsed.pop(option.name) for option in declared}
    parsed["cost"] = parsed["cost"] or policy.DEFAULT_COST
    accounts_cost = parsed["cost"] if policy.ACCOUNTS_IN_COST else "kv_token_time"
    options = PolicyOptions(**parsed, accounts_cost=accounts_cost, own=own)
    if options.clock == "nominal" and accounts_cost != "kv_token_time":
        raise ConfigError(
            f"policy_options.cost: {accounts_cost!r} has no nominal rate; it needs clock: served"
        )
    if options.clock != "served" and options.fairness == "tenant":
        raise ConfigError("policy_options.fairness: 'tenant' needs clock: served")
    return options
