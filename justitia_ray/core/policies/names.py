"""Names of the policies, and their names in earlier versions. No policy is imported here."""

from collections.abc import Mapping

_HERE = "justitia_ray.core.policies"

POLICIES: dict[str, str] = {
    "justitia": f"{_HERE}.justitia:JustitiaPolicy",
    "fcfs": f"{_HERE}.simple:FcfsPolicy",
    "sjf": f"{_HERE}.simple:SjfPolicy",
    "app-fcfs": f"{_HERE}.simple:AppFcfsPolicy",
    "srjf": f"{_HERE}.simple:SrjfPolicy",
    "vtc": f"{_HERE}.vtc:VtcPolicy",
    "justitia-guarded": f"{_HERE}.guarded.policy:GuardedPolicy",
}
"""Import path of each policy by name; its module is imported only when the policy is selected."""

_LAB = "justitia_ray.lab.policies"

LAB_POLICIES: dict[str, str] = {
    "vtc-predict": f"{_LAB}.predicted_vtc:VtcPredictPolicy",
    "vtc-oracle": f"{_LAB}.predicted_vtc:VtcOraclePolicy",
    "vtc-noisy": f"{_LAB}.predicted_vtc:VtcNoisyPolicy",
    "lcf": f"{_LAB}.lcf:LcfPolicy",
    "rpm": f"{_LAB}.rpm:RpmPolicy",
    "drr": f"{_LAB}.drr:DrrPolicy",
    "mlfq": f"{_LAB}.attained_service:MlfqPolicy",
    "plas": f"{_LAB}.attained_service:PlasPolicy",
}
"""Names of policies from papers, which simulations and benchmarks accept; the service accepts only
import paths.
"""

_MOVED = {"order": "finish", "guard_iterations": 0}
"""Former options of the policy `justitia`, with their former defaults; the next release refuses
them.
"""


_REMOVED = ("kv_share_cap",)
"""Former options that have no effect; the next release refuses them."""


def policy_path(name: str) -> str:
    """Return the import path of a policy of the package `lab`, or any other name unchanged."""
    return LAB_POLICIES.get(name, name)


def in_force(policy: str, options: Mapping[str, object]) -> tuple[str, Mapping[str, object]]:
    """Return the current policy and options for a configuration of an earlier release.

    `justitia` had the options of `justitia-guarded`.
    """
    options = {name: value for name, value in options.items() if name not in _REMOVED}
    moved = {name: options[name] for name in _MOVED if name in options}
    if policy != "justitia" or not moved:
        return policy, options
    asked = _MOVED | moved
    if asked == _MOVED:
        return policy, {name: value for name, value in options.items() if name not in _MOVED}
    return "justitia-guarded", {**options, **asked}


def advice(policy: str, options: Mapping[str, object]) -> str | None:
    """Return an earlier release's policy and options as written now; None: unchanged.

    In this release the service still starts with the old form.
    """
    name, meant = in_force(policy, options)
    if (name, meant) == (policy, options):
        return None
    if removed := " and ".join(option for option in _REMOVED if option in options):
        return f"policy_options: leave out {removed}: this release has no such option"
    moved = " and ".join(option for option in _MOVED if option in options)
    if name == policy:
        return f"policy_options: leave out {moved}: policy: justitia has no other order"
    added = ", ".join(f"{option}: {meant[option]}" for option in meant if option not in options)
    with_these = f", with policy_options {added} added" if added else ""
    return f"policy: {moved} moved: use policy: {name}{with_these}"
