"""The policies; `names` has the tables that list them, and README.md describes each.

Policies outside this folder are named by their import path, `package.module:Class`; see `Policy`.
"""

from collections.abc import Mapping

from justitia_ray.core.policies.base import (
    Delivery,
    Durable,
    Observer,
    Order,
    Policy,
    PolicyContext,
)
from justitia_ray.core.policies.names import (
    LAB_POLICIES,
    POLICIES,
    advice,
    in_force,
    policy_path,
)
from justitia_ray.core.policies.options import COMMON, PolicyOptions
from justitia_ray.cost import find_by_path
from justitia_ray.errors import ConfigError

__all__ = [
    "LAB_POLICIES",
    "POLICIES",
    "Delivery",
    "Durable",
    "Observer",
    "Order",
    "Policy",
    "PolicyContext",
    "PolicyOptions",
    "advice",
    "find_policy",
    "in_force",
    "parse_options",
    "policy_path",
]


def find_policy(name: str) -> type[Order]:
    """Return a policy by its name, or a user's policy by import path, `package.module:Class`.

    Raises:
        ConfigError: If there is no such policy.
    """
    if name in LAB_POLICIES:
        raise ConfigError(f"policy: {name!r} is a baseline of the lab: write {LAB_POLICIES[name]}")
    found = find_by_path(POLICIES.get(name, name))
    if isinstance(found, type) and issubclass(found, Order):
        return found
    raise ConfigError(
        f"policy: {name!r} is not one of {', '.join(POLICIES)}, nor the import path of a subclass "
        f"of Policy, module:Class"
    )


def parse_options(policy: str, values: Mapping[str, object]) -> PolicyOptions:
    """Check the name and the options of a policy; return the options with defaults.

    Raises:
        ConfigError: If the policy, an option or a value is not allowed.
    """
    declaration = find_policy(policy)
    declared = declaration.OPTIONS
    known = {option.name: option for option in (*COMMON, *declared)}
    for name in values:
        if name not in known:
            moved = advice(policy, values)
            raise ConfigError(moved or f"policy_options: {name!r} is not one of {', '.join(known)}")
    parsed = {}
    for name, option in known.items():
        parsed[name] = option.default
        if name in values:
            try:
                parsed[name] = option.parse(values[name])
            except (ValueError, ConfigError) as error:
                raise ConfigError(f"policy_options.{name}: {values[name]!r} {error}") from error
    own = {option.name: parsed.pop(option.name) for option in declared}
    parsed["cost"] = parsed["cost"] or declaration.DEFAULT_COST
    accounts_cost = parsed["cost"] if declaration.ACCOUNTS_IN_COST else "kv_token_time"
    options = PolicyOptions(**parsed, accounts_cost=accounts_cost, own=own)
    if options.clock == "nominal" and accounts_cost != "kv_token_time":
        raise ConfigError(
            f"policy_options.cost: {accounts_cost!r} has no nominal rate; it needs clock: served"
        )
    if options.clock != "served" and options.fairness == "tenant":
        raise ConfigError("policy_options.fairness: 'tenant' needs clock: served")
    if options.clock not in declaration.CLOCKS:
        raise ConfigError(
            f"policy_options.clock: {options.clock!r} is not one of {', '.join(declaration.CLOCKS)}"
            f", with which policy {policy} works"
        )
    return options
