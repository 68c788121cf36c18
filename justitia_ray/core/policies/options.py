"""Options of policies, each declared once.

Error messages of their parsers name the allowed values.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from justitia_ray.cost import CostFunction, find_cost

UNLIMITED = "unlimited"
_LARGEST = 1e300
"""Largest accepted number; larger integers do not fit a float."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a policy: its name, its default and its parser."""

    name: str
    default: Any
    parse: Callable[[Any], Any]
    """Function that returns the parsed value, and raises ValueError with the allowed values."""


def one_of(*allowed: str) -> Callable[[Any], str]:
    """Return a parser that accepts one of these names."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"is not one of {', '.join(allowed)}")
        return value

    return parse


def number(
    above: float | None = None, least: float | None = None, most: float | None = None
) -> Callable[[Any], float]:
    """Return a parser that accepts a finite number in a range."""
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
    """Return a parser that accepts a whole number and, if allowed, `unlimited` (None)."""
    allowed = f"a whole number of at least {least}" + (f" or {UNLIMITED}" if or_unlimited else "")

    def parse(value: Any) -> int | None:
        if or_unlimited and value == UNLIMITED:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"must be {allowed}")
        return value

    return parse


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("is not true or false")
    return value


def cost_name(value: Any) -> str:
    """Parse the name of a cost function, or the import path of a user's function."""
    if not isinstance(value, str):
        raise ValueError("is not the name of a cost function")
    find_cost(value)
    return value


UNIT = Option("unit", "application", one_of("application", "tenant"))
"""Option `unit`: whether a policy compares applications or tenants."""

COMMON: tuple[Option, ...] = (
    Option("clock", "served", one_of("served", "nominal", "unsettled")),
    Option("nominal_iteration_s", 0.03, number(above=0)),
    Option("cost", None, cost_name),
    Option("fairness", "application", one_of("application", "tenant")),
    Option("backfill", 0, whole(0, or_unlimited=True)),
)


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """Parsed options of a policy: for accounts, for admission, and its own."""

    clock: str = "served"
    """Clock that moves virtual time V: by delivered service (`served`), by time at the nominal rate
    as in the paper (`nominal`), or by delivered service without settlement, for studies
    (`unsettled`).
    """
    nominal_iteration_s: float = 0.03
    """Seconds per decode iteration for the nominal clock. The Justitia paper (v1, Sec. V) measures
    about 30 ms.
    """
    cost: str = "kv_token_time"
    """Name of the cost function by which the policy charges."""
    fairness: str = "application"
    """Entities between which the accounts share service: applications, or tenants and then their
    applications.
    """
    backfill: int | None = 0
    """Number of times that the first application in order may be overtaken while it fits on no
    replica; None: no limit.
    """
    accounts_cost: str = "kv_token_time"
    """Name of the cost function of the accounts."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Options that only this policy has."""

    @property
    def cost_function(self) -> CostFunction:
        """Return the cost function h(p, d) of the option `cost`."""
        return find_cost(self.cost)

    @property
    def accounts_kind(self) -> str:
        """Return the kind of accounts: the clock; fairness and cost if not the defaults."""
        fairness = [self.fairness] if self.fairness != "application" else []
        cost = [self.accounts_cost] if self.accounts_cost != "kv_token_time" else []
        return " ".join([self.clock, *fairness, *cost])

    def same_accounts(self, other: "PolicyOptions") -> bool:
        """Return whether accounts of one set of options can be used under another set."""
        same_rate = self.nominal_iteration_s == other.nominal_iteration_s
        return self.accounts_kind == other.accounts_kind and (self.clock == "served" or same_rate)
