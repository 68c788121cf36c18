"""The policies, by name; the table is the only place that lists them. README.md says what each is.

A policy from outside the package is named by its import path, `package.module:Class`; see
`Policy`.
"""

from collections.abc import Mapping

from justitia_ray.core.policies.attained_service import MlfqPolicy, PlasPolicy
from justitia_ray.core.policies.base import Delivery, Policy, PolicyContext
from justitia_ray.core.policies.drr import DrrPolicy
from justitia_ray.core.policies.justitia import JustitiaPolicy
from justitia_ray.core.policies.options import COMMON, PolicyOptions
from justitia_ray.core.policies.rpm import RpmPolicy
from justitia_ray.core.policies.simple import AppFcfsPolicy, FcfsPolicy, SjfPolicy, SrjfPolicy
from justitia_ray.core.policies.vtc import (
    LcfPolicy,
    VtcNoisyPolicy,
    VtcOraclePolicy,
    VtcPolicy,
    VtcPredictPolicy,
)
from justitia_ray.cost import find_by_path
from justitia_ray.errors import ConfigError

__all__ = [
    "POLICIES",
    "Delivery",
    "Policy",
    "PolicyContext",
    "PolicyOptions",
    "find_policy",
    "parse_options",
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
    "lcf": LcfPolicy,
    "rpm": RpmPolicy,
    "drr": DrrPolicy,
    "mlfq": MlfqPolicy,
    "plas": PlasPolicy,
}


def find_policy(name: str) -> type[Policy]:
    """Return a policy by its name, or a user's own by import path: `package.module:Class`.

    Raises:
        ConfigError: If there is none of that name.
    """
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
