"""Random lives of applications, for the property tests of fair shares: steps and what they do."""

from dataclasses import dataclass
from fractions import Fraction

from hypothesis import strategies as st

from justitia_ray.core.fair_share import ServedShare
from justitia_ray.units import ApplicationId, KvTokenTime
from tests.exact import exact
from tests.oracles.gps import ServedRules
from tests.oracles.tenant_gps import TenantRules

VERBS = ("arrive", "arrive", "deliver", "deliver", "withdraw", "resume", "settle", "reweigh")
WORK = st.integers(0, 60 * 60).map(lambda parts: Fraction(parts, 60))
"""With `st.fractions` the three files that draw from it take four times the CPU."""


@dataclass(frozen=True)
class Step:
    """Something that happens; what does not apply to the state is skipped."""

    verb: str
    name: str
    work: Fraction
    weight: Fraction
    others: tuple[tuple[str, Fraction], ...] = ()


def lives(
    verbs: tuple[str, ...],
    names: st.SearchStrategy[str],
    weights: st.SearchStrategy[Fraction],
    most: int,
) -> st.SearchStrategy[list[Step]]:
    """Return lists of at most so many steps."""
    deliveries = st.lists(st.tuples(names, WORK), max_size=3).map(tuple)
    step = st.builds(Step, st.sampled_from(verbs), names, WORK, weights, deliveries)
    return st.lists(step, min_size=1, max_size=most)


def change(share: ServedShare, verb: str, name: ApplicationId, work: KvTokenTime) -> None:
    """Let a verb that needs no weight happen to an application that is there, if it applies."""
    if verb == "deliver" and not share.accounts[name].withdrawn:
        share.deliver([(name, work)])
    elif verb == "withdraw":
        share.withdraw(name)
    elif verb == "resume":
        share.resume(name)
    elif verb == "settle":
        share.settle(name)


def change_both(
    share: ServedShare, oracle: ServedRules | TenantRules, step: Step, name: ApplicationId
) -> None:
    """Let a step happen in the accounts and in the oracle, to an application that is there.

    A settled application must have the same final key in both, where the oracle says one.
    """
    if step.verb == "withdraw":
        share.withdraw(name)
        oracle.leave(name)
    elif step.verb == "resume":
        share.resume(name)
        oracle.come_back(name)
    elif step.verb == "settle":
        key = share.settle(name)
        if isinstance(oracle, TenantRules):
            assert oracle.end(name) == key, "final key"
        else:
            oracle.end(name)
    elif step.verb == "expect":
        share.expect(name, exact(step.work))
        oracle.expect(name, step.work)
    elif step.verb == "reweigh":
        share.reweigh(name, exact(step.weight))
        oracle.reweigh(name, step.weight)
