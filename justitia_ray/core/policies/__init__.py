"""The policies, by name; the table is the only place that lists them. README.md says what each is.

A policy from outside the package is named by its import path, `package.module:Class`; see
`Policy`.
"""

from collections.abc import Mapping

from justitia_ray.core.policies import options as _options
from justitia_ray.core.policies.app_fcfs import AppFcfsPolicy
from justitia_ray.core.policies.base import Delivery, Policy, PolicyContext
from justitia_ray.core.policies.drr import DrrPolicy
from justitia_ray.core.policies.fcfs import FcfsPolicy
from justitia_ray.core.policies.justitia import JustitiaPolicy
from justitia_ray.core.policies.lcf import LcfPolicy
from justitia_ray.core.policies.mlfq import MlfqPolicy
from justitia_ray.core.policies.options import PolicyOptions
from justitia_ray.core.policies.plas import PlasPolicy
from justitia_ray.core.policies.rpm import RpmPolicy
from justitia_ray.core.policies.sjf import SjfPolicy
from justitia_ray.core.policies.srjf import SrjfPolicy
from justitia_ray.core.policies.vtc import VtcPolicy
from justitia_ray.core.policies.vtc_predict import (
    VtcNoisyPolicy,
    VtcOraclePolicy,
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
    return _options.parse(find_policy(policy), values)
