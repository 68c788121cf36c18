"""Random sequences of operations on applications, for the property tests of fair shares."""

from dataclasses import dataclass
from fractions import Fraction

from hypothesis import strategies as st

from justitia_ray.core.clock.fair_share import ServedShare
from justitia_ray.core.clock.virtual_clock import VirtualClock
from justitia_ray.units import ApplicationId, KvTokenTime
from tests.exact import exact
from tests.oracles.gps import ExactFairShare

VERBS = (
    *("arrive", "arrive", "deliver", "deliver"),
    *("withdraw", "resume", "settle", "reweigh", "expect"),
)
WORK = st.integers(0, 60 * 60).map(lambda parts: Fraction(parts, 60))
"""Strategy of amounts of work; whole numbers take a quarter of the CPU time of fractions."""


@dataclass(frozen=True)
class Step:
    """Random operation on an application; it is skipped if the state does not allow it."""

    verb: str
    name: str
    work: Fraction
    weight: Fraction
    others: tuple[tuple[str, Fraction], ...] = ()


def step_lists(
    verbs: tuple[str, ...],
    names: st.SearchStrategy[str],
    weights: st.SearchStrategy[Fraction],
    most: int,
) -> st.SearchStrategy[list[Step]]:
    deliveries = st.lists(st.tuples(names, WORK), max_size=3).map(tuple)
    step = st.builds(Step, st.sampled_from(verbs), names, WORK, weights, deliveries)
    return st.lists(step, min_size=1, max_size=most)


def apply_step(
    share: ServedShare,
    verb: str,
    name: ApplicationId,
    work: KvTokenTime,
    weight: float = 1,
) -> None:
    """Apply an operation to an application, if the application's state allows that."""
    if verb == "deliver" and not share.accounts[name].withdrawn:
        share.deliver([(name, work)])
    elif verb == "withdraw":
        share.withdraw(name)
    elif verb == "resume":
        share.resume(name)
    elif verb == "settle":
        share.settle(name)
    elif verb == "expect":
        share.expect(name, work)
    elif verb == "reweigh":
        share.reweigh(name, weight)


_NOTHING = Fraction(0)


class Pair:
    """Fair-share accounts and an exact reference that run the same steps, to be compared."""

    def __init__(self, origin: Fraction = _NOTHING) -> None:
        """Start the accounts at virtual time `origin`, and the reference at 0."""
        self.origin = origin
        self.share: ServedShare = ServedShare(VirtualClock(exact(origin)))
        self.oracle = ExactFairShare()
        self.arrivals = 0

    def apply(self, step: Step) -> None:
        name = self.id_of(step.name)
        if step.verb == "deliver":
            named = [(self.id_of(n), work) for n, work in ((step.name, step.work), *step.others)]
            busy = [(n, work) for n, work in named if n in self.present()]
            self.share.deliver([(n, exact(work)) for n, work in busy])
            self.oracle.report(busy)
        elif step.verb == "arrive" and name not in self.oracle.ledgers:
            self.arrivals += 1
            self.arrive(step)
        elif step.verb != "arrive" and name in self.oracle.ledgers:
            self._change_both(step, name)

    def id_of(self, name: str) -> ApplicationId:
        return name

    def arrive(self, step: Step) -> None:
        self.share.arrive(step.name, exact(step.work), exact(step.weight), self.arrivals)
        self.oracle.arrive(step.name, step.work, step.weight)

    def present(self) -> list[ApplicationId]:
        return [name for name, ledger in self.oracle.ledgers.items() if not ledger.away]

    def _change_both(self, step: Step, name: ApplicationId) -> None:
        if step.verb == "settle":
            final = self.share.settle(name)
            self.oracle.end(name)
            assert self.oracle.key(name) + self.origin == final
            return
        apply_step(self.share, step.verb, name, exact(step.work), exact(step.weight))
        if step.verb == "withdraw":
            self.oracle.leave(name)
        elif step.verb == "resume":
            self.oracle.come_back(name)
        elif step.verb == "expect":
            self.oracle.expect(name, step.work)
        elif step.verb == "reweigh":
            self.oracle.reweigh(name, step.weight)
