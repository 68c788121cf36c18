"""The policies, by name; the tables are the only place that lists them. README.md describes each.

A policy from outside this folder is named by its import path, `package.module:Class`; see
`Policy`.
"""

from collections.abc import Mapping

from justitia_ray.core.policies.base import Delivery, Policy, PolicyContext
from justitia_ray.core.policies.justitia import JustitiaPolicy
from justitia_ray.core.policies.options import COMMON, PolicyOptions
from justitia_ray.core.policies.simple import AppFcfsPolicy, FcfsPolicy, SjfPolicy, SrjfPolicy
from justitia_ray.core.policies.vtc import (
    VtcNoisyPolicy,
    VtcOraclePolicy,
    VtcPolicy,
    VtcPredictPolicy,
)
from justitia_ray.cost import find_by_path
from justitia_ray.errors import ConfigError

__all__ = [
    "LAB_POLICIES",
    "POLICIES",
    "Delivery",
    "Policy",
    "PolicyContext",
    "PolicyOptions",
    "find_policy",
    "parse_options",
    "policy_path",
]

POLICIES: dict[str, type[Policy]] = {
    "justitia": JustitiaPolicy,
    "fcfs": FcfsPolicy,
    "sjf": SjfPolicy,
    "app-fcfs": AppFcfsPolicy,
    "srjf": SrjfPolicy,
    "vtc": VtcPolicy,
    "vtc-predict": VtcPredictPolicy,
    "vtc-oracle": VtcOraclePolicy,
    "vtc-noisy": VtcNoisyPolicy,
}

LAB_POLICIES: dict[str, str] = {
    "lcf": "justitia_ray.lab.policies.lcf:LcfPolicy",
    "rpm": "justitia_ray.lab.policies.rpm:RpmPolicy",
    "drr": "justitia_ray.lab.policies.drr:DrrPolicy",
    "mlfq": "justitia_ray.lab.policies.attained_service:MlfqPolicy",
    "plas": "justitia_ray.lab.policies.attained_service:PlasPolicy",
}
"""Baselines of the papers: simulations and benchmarks take the name, the service the import path.

Nothing of the lab is imported before one of them is chosen.
"""


def policy_path(name: str) -> str:
    """Return the import path of a policy of the lab; any other name as it is."""
    return LAB_POLICIES.get(name, name)


def find_policy(name: str) -> type[Policy]:
    """Return a policy by its name, or a user's own by import path: `package.module:Class`.

    Raises:
        ConfigError: If there is none of that name.
    """
    if name in LAB_POLICIES:
        raise ConfigError(f"policy: {name!r} is a baseline of the lab: write {LAB_POLICIES[name]}")
    if name in POLICIES:
        return POLICIES[name]
    found = find_by_path(name)
    if isinstance(found, type) and issubclass(found, Policy):
        return found
    raise ConfigError(
        f"policy: {name!r} is not one of {', '.join(POLICIES)}, nor the import path of a subclass "
        f"of Policy, module:Class"
    )


def parse_options(policy: str, values: Mapping[str, object]) -> PolicyOptions:
    """Check a policy's name and options.

    Raises:
        ConfigError: If the policy, an option or a value is not one of those allowed.
    """
    declaration = find_policy(policy)
    declared = declaration.OPTIONS
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
    parsed["cost"] = parsed["cost"] or declaration.DEFAULT_COST
    accounts_cost = parsed["cost"] if declaration.ACCOUNTS_IN_COST else "kv_token_time"
    options = PolicyOptions(**parsed, accounts_cost=accounts_cost, own=own)
    if options.clock == "nominal" and accounts_cost != "kv_token_time":
        raise ConfigError(
            f"policy_options.cost: {accounts_cost!r} has no nominal rate; it needs clock: served"
        )
    if options.clock != "served" and options.fairness == "tenant":
        raise ConfigError("policy_options.fairness: 'tenant' needs clock: served")
    declaration.check(options)
    return options
