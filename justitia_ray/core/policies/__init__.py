"""The policies, by name; the table is the only place that lists them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from justitia_ray.core.fair_share import FairShare, NominalShare, ServedShare
from justitia_ray.core.policies.base import Delivery, Key, Policy
from justitia_ray.core.policies.fcfs import FcfsPolicy
from justitia_ray.core.policies.justitia import JustitiaPolicy
from justitia_ray.errors import ConfigError

__all__ = ["CLOCKS", "POLICIES", "Delivery", "Key", "Policy", "PolicyOptions", "parse_options"]

POLICIES: dict[str, Callable[[FairShare], Policy]] = {
    "justitia": JustitiaPolicy,
    "fcfs": FcfsPolicy,
}

CLOCKS = ("served", "nominal")


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """Options of a policy; every policy keeps the accounts, so every policy takes them."""

    clock: str = "served"
    """What moves V: delivered service, or time at the nominal rate (the paper's)."""
    nominal_iteration_s: float = 0.03
    """Seconds of a decode iteration, for the nominal clock: v1, Sec. V measures about 30 ms."""

    def same_clock(self, other: "PolicyOptions") -> bool:
        """Return whether both give clocks that move alike."""
        if self.clock != other.clock:
            return False
        return self.clock == "served" or self.nominal_iteration_s == other.nominal_iteration_s

    def fair_share(self) -> ServedShare:
        """Return empty accounts under the chosen clock."""
        if self.clock == "nominal":
            return NominalShare(self.nominal_iteration_s)
        return ServedShare()


def parse_options(policy: str, options: Mapping[str, object]) -> PolicyOptions:
    """Check a policy's name and options.

    Raises:
        ConfigError: If the policy, an option or a value is not one of those allowed.
    """
    if policy not in POLICIES:
        raise ConfigError(f"policy: {policy!r} is not one of {', '.join(POLICIES)}")
    known = PolicyOptions.__dataclass_fields__
    for name in options:
        if name not in known:
            raise ConfigError(f"policy_options: {name!r} is not one of {', '.join(known)}")
    clock = options.get("clock", "served")
    if clock not in CLOCKS:
        raise ConfigError(f"policy_options.clock: {clock!r} is not one of {', '.join(CLOCKS)}")
    iteration_s = options.get("nominal_iteration_s", 0.03)
    if isinstance(iteration_s, bool) or not isinstance(iteration_s, int | float):
        raise ConfigError(f"policy_options.nominal_iteration_s: {iteration_s!r} is not a number")
    if not 0 < iteration_s < float("inf"):
        raise ConfigError(
            f"policy_options.nominal_iteration_s: {iteration_s!r} must be above 0 and finite"
        )
    return PolicyOptions(str(clock), float(iteration_s))
