"""Names of the policies, and what earlier versions called them. Nothing is imported for a name."""

from collections.abc import Mapping

_HERE = "justitia_ray.core.policies"

POLICIES: dict[str, str] = {
    "justitia": f"{_HERE}.justitia:JustitiaPolicy",
    "fcfs": f"{_HERE}.simple:FcfsPolicy",
    "sjf": f"{_HERE}.simple:SjfPolicy",
    "app-fcfs": f"{_HERE}.simple:AppFcfsPolicy",
    "srjf": f"{_HERE}.simple:SrjfPolicy",
    "vtc": f"{_HERE}.vtc:VtcPolicy",
    "vtc-predict": f"{_HERE}.vtc:VtcPredictPolicy",
    "vtc-oracle": f"{_HERE}.vtc:VtcOraclePolicy",
    "vtc-noisy": f"{_HERE}.vtc:VtcNoisyPolicy",
    "justitia-guarded": f"{_HERE}.guarded.policy:GuardedPolicy",
}
"""Policies by name, and where each is. The module of one is imported when it is chosen."""

_LAB = "justitia_ray.lab.policies"

LAB_POLICIES: dict[str, str] = {
    "lcf": f"{_LAB}.lcf:LcfPolicy",
    "rpm": f"{_LAB}.rpm:RpmPolicy",
    "drr": f"{_LAB}.drr:DrrPolicy",
    "mlfq": f"{_LAB}.attained_service:MlfqPolicy",
    "plas": f"{_LAB}.attained_service:PlasPolicy",
}
"""Baselines of the papers: simulations and benchmarks take the name, the service the path."""

_MOVED = {"order": "finish", "guard_iterations": 0}
"""Options that `justitia` had, and their defaults there. They go with the next release."""


def policy_path(name: str) -> str:
    """Return the import path of a policy of the lab; any other name as it is."""
    return LAB_POLICIES.get(name, name)


def in_force(policy: str, options: Mapping[str, object]) -> tuple[str, Mapping[str, object]]:
    """Return the policy and the options that a configuration of an earlier version means now.

    `justitia` had the options of `justitia-guarded`.
    """
    moved = {name: options[name] for name in _MOVED if name in options}
    if policy != "justitia" or not moved:
        return policy, options
    asked = _MOVED | moved
    if asked == _MOVED:
        return policy, {name: value for name, value in options.items() if name not in _MOVED}
    return "justitia-guarded", {**options, **asked}


def advice(policy: str, options: Mapping[str, object]) -> str | None:
    """Return what a policy and options of an earlier version are now; None: they have not changed.

    What is written starts as it is meant, in this release.
    """
    name, meant = in_force(policy, options)
    if (name, meant) == (policy, options):
        return None
    moved = " and ".join(option for option in _MOVED if option in options)
    if name == policy:
        return f"policy_options: leave out {moved}: policy: justitia has no other order"
    added = ", ".join(f"{option}: {meant[option]}" for option in meant if option not in options)
    with_these = f", with policy_options {added} added" if added else ""
    return f"policy: {moved} moved: use policy: {name}{with_these}"
