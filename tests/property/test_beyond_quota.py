"""Property tests of work beyond a quota: it is served last and takes nothing from other work."""

from dataclasses import replace
from fractions import Fraction
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.clock.tenant_share import TenantShare
from justitia_ray.core.clock.virtual_clock import VirtualClock
from justitia_ray.core.tenants import BEYOND, LEAST_WEIGHT, TenantNode, TenantTree, beyond
from tests.core_driver import CoreDriver
from tests.exact import exact
from tests.property.profiles import examples
from tests.property.share_steps import VERBS, Step, apply_step, step_lists
from tests.property.test_tree_rules import TENANT_OF, restored_from_records

_TENANT_OF = TENANT_OF | {"j": "Y/r"}
_NAMES = st.sampled_from("".join(_TENANT_OF))
_WEIGHTS = st.sampled_from([Fraction(1), Fraction(2), Fraction(1, 2)])
_STEPS = step_lists(VERBS, _NAMES, _WEIGHTS, 30)
_MOVING = step_lists((*VERBS, "move", "move"), _NAMES, _WEIGHTS, 30)
_TREE = TenantTree(
    {
        "X": TenantNode(weight=exact(3)),
        "X/q": TenantNode(weight=exact(2)),
        "Y/r": TenantNode(weight=exact(5)),
        "Z": TenantNode(weight=exact(1, 3)),
    }
)


class _Share(TenantShare):
    """Exact fair-share accounts in which some applications exceed their quota."""

    def __init__(self) -> None:
        super().__init__(VirtualClock(exact(0)), _TREE)
        self.nodes.beyond.start(exact(0))
        self.sequence = 0
        self.has_none: set[str] = set()
        """Applications that exceed their quota."""

    def apply(self, step: Step) -> None:
        name, weight = step.name, exact(step.weight)
        if step.verb == "arrive" and name not in self.accounts:
            self.sequence += 1
            self.has_none.discard(name)
            self.arrive(name, exact(step.work + 2), weight, self.sequence, _TENANT_OF[name])
        elif step.verb == "move" and name in self.accounts:
            self.has_none ^= {name}
            self.place_application(name)
        elif step.verb == "deliver":
            busy = [
                (one, exact(work))
                for one, work in ((name, step.work), *step.others)
                if one in self.accounts and not self.accounts[one].withdrawn
            ]
            if busy:
                self.deliver(busy)
        elif name in self.accounts and step.verb not in ("arrive", "move"):
            apply_step(self, step.verb, name, exact(step.work), weight)

    def place_application(self, name: str) -> None:
        tenant = _TENANT_OF[name]
        leaf = beyond(tenant) if name in self.has_none else tenant
        self.move(name, leaf, self.accounts[name].weight)

    def keys_of(self, names: set[str]) -> dict[str, tuple[float, float]]:
        """Return the sort keys of applications, at the top and inside their tenants."""
        there = sorted(names & self.accounts.keys())
        return {name: (self.tag(name), self.tag_in_tenant(name)) for name in there}


class _LowWeightShare(_Share):
    """Wrong accounts in which work beyond a quota only has a millionth of its weight."""

    def place_application(self, name: str) -> None:
        self.reweigh(name, self.accounts[name].weight * LEAST_WEIGHT)


def _with_and_without(share: _Share, steps: list[Step], beyond_it: set[str]) -> _Share:
    """Return accounts with all steps, and accounts without the steps beyond quotas."""
    without = _Share()
    for step in steps:
        share.apply(step)
        if step.verb == "arrive" and step.name in beyond_it - share.has_none:
            share.has_none.add(step.name)
            share.place_application(step.name)
        others = tuple(one for one in step.others if one[0] not in beyond_it)
        rest = replace(step, others=others)
        if step.name not in beyond_it:
            without.apply(rest)
        elif step.verb == "deliver" and others:
            first, work = others[0]
            without.apply(replace(rest, name=first, work=work, others=others[1:]))
    return without


@examples(60)
@given(_STEPS, st.sets(_NAMES))
def test_work_beyond_quotas_does_not_change_sort_keys_of_other_work(
    steps: list[Step], beyond_it: set[str]
) -> None:
    """Virtual time and sort keys are as if the work beyond quotas did not exist."""
    share = _Share()
    without = _with_and_without(share, steps, beyond_it)
    names = set(_TENANT_OF) - beyond_it

    assert share.clock.virtual_time == without.clock.virtual_time
    assert share.keys_of(names) == without.keys_of(names)


@examples(60)
@given(_STEPS, st.sets(_NAMES))
def test_tenants_share_service_beyond_quotas_by_the_tenant_tree(
    steps: list[Step], beyond_it: set[str]
) -> None:
    """Splitting a tenant must gain nothing beyond the quotas either."""
    share, only = _Share(), _Share()
    _with_and_without(share, steps, beyond_it)
    for step in steps:
        others = tuple(one for one in step.others if one[0] in beyond_it)
        rest = replace(step, others=others)
        if step.name in beyond_it:
            only.apply(rest)
        elif step.verb == "deliver" and others:
            first, work = others[0]
            only.apply(replace(rest, name=first, work=work, others=others[1:]))

    for name, account in only.accounts.items():
        if not account.withdrawn:
            assert share.keys.key_in(share.nodes.branches.get(BEYOND), name) == only.tag(name), name


def test_low_weight_instead_of_a_separate_tree_delays_work_within_quotas() -> None:
    """Only a separate virtual time keeps work beyond quotas from delaying other work.

    Both applications have 12 to do. Without the rule x of X (weight 3, no quota left) is done at V
    = 4, and f of Y, which has quota left, at V = 12.
    """
    steps = [
        Step("arrive", "a", Fraction(10), Fraction(1)),
        Step("arrive", "f", Fraction(10), Fraction(1)),
        Step("deliver", "f", Fraction(6), Fraction(1)),
    ]
    share, unruled = _Share(), _LowWeightShare()
    without = _with_and_without(share, steps, {"a"})
    _with_and_without(unruled, steps, {"a"})

    assert share.clock.virtual_time == without.clock.virtual_time == 6
    assert unruled.clock.virtual_time < 2
    assert unruled.tag("a") < unruled.tag("f")


@examples(80)
@given(_MOVING)
def test_each_tenant_tree_has_exactly_the_charged_work_left(steps: list[Step]) -> None:
    """Applications beyond their quota have a tenant tree of their own; no work counts in both."""
    share = _Share()
    for step in steps:
        share.apply(step)
        for clock, names in (
            (share.clock, share.accounts.keys() - share.has_none),
            (share.nodes.beyond, share.accounts.keys() & share.has_none),
        ):
            live = [share.accounts[name] for name in names]
            charged = sum(a.charged - a.attained for a in live if not a.withdrawn)
            assert clock.backlog() == charged, step
        for leaf in share.nodes.kept_leaves().values():
            share._update_path(leaf)
            session = share.nodes.clock_of(leaf).session(leaf.name)
            owed = leaf.weight * max(0, session.finish - leaf.server.since)
            assert owed == leaf.gps.backlog() == leaf.server.total
        for branch in share.nodes.kept_branches().values():
            session = share.nodes.clock_of(branch).session(branch.name)
            owed = branch.weight * max(0, session.finish - branch.since)
            assert owed == branch.clock.backlog()


def test_reused_application_id_inherits_no_charged_service() -> None:
    """An application beyond its quota ends; a new one with its id is within the quota.

    GPS had served the other 8. The 8 are owed with the rest of g's 100; the next j, which has
    quota, is charged only its own 10.
    """
    share = _Share()
    for verb, name, work in (
        *(("arrive", "g", 98), ("move", "g", 0), ("arrive", "j", 18), ("move", "j", 0)),
        *(("deliver", "j", 16), ("settle", "j", 0), ("arrive", "j", 8)),
    ):
        share.apply(Step(verb, name, Fraction(work), Fraction(1)))

    assert (100, 10) == (share.nodes.beyond.backlog(), share.clock.backlog())
    assert "j|0" in share.sessions()


@examples(60)
@given(_MOVING, _NAMES)
def test_application_beyond_its_quota_affects_others_like_an_ended_one(
    steps: list[Step], name: str
) -> None:
    share, ended = _Share(), _Share()
    for step in steps:
        share.apply(step)
        ended.apply(step)
    if name not in share.accounts:
        return
    had_none = name in share.has_none
    share.apply(Step("move", name, Fraction(0), Fraction(1)))
    ended.settle(name)
    left = {one for one in ended.accounts if (one in ended.has_none) == had_none}
    clocks = [one.nodes.beyond if had_none else one.clock for one in (share, ended)]

    assert clocks[0].virtual_time == clocks[1].virtual_time
    assert share.keys_of(left) == ended.keys_of(left)


_FLOATS = st.lists(
    st.tuples(
        st.sampled_from((*VERBS, "move", "move")),
        _NAMES,
        st.floats(0.001, 1e7),
        st.sampled_from([1.0, 2.0, 0.3]),
    ),
    min_size=1,
    max_size=40,
)


@examples(80)
@given(_FLOATS, st.randoms(use_true_random=False))
def test_restored_fair_share_accounts_give_equal_sort_keys(
    steps: list[tuple[str, str, float, float]], shuffled: Random
) -> None:
    """Sort keys are equal to the last bit, in whatever order a store returns the records."""
    share = TenantShare(tree=TenantTree({"X": TenantNode(weight=3.0)}))
    for sequence, (verb, name, work, weight) in enumerate(steps):
        account = share.accounts.get(name)
        if verb == "arrive" and account is None:
            share.arrive(name, work, weight, sequence, _TENANT_OF[name])
        elif verb == "move" and account is not None:
            tenant, now = _TENANT_OF[name], share.nodes.path_of[name]
            share.move(name, beyond(tenant) if now == tenant else tenant, account.weight)
        elif account is not None and verb != "move":
            apply_step(share, verb, name, work, weight)
    share.take_changed()
    names = sorted(share.sessions())
    shuffled.shuffle(names)
    restored = restored_from_records(share, names)

    assert share.clock_state() == restored.clock_state()
    assert share.nodes.beyond.virtual_time == restored.nodes.beyond.virtual_time
    for name in share.accounts:
        assert share.tag(name) == restored.tag(name)
        assert share.tag_in_tenant(name) == restored.tag_in_tenant(name)


@examples(40)
@given(
    st.lists(st.tuples(_NAMES, st.integers(2, 500)), min_size=1, max_size=12),
    st.sets(_NAMES),
    st.sampled_from([{}, {"order": "sgps"}, {"guard_iterations": 50}]),
)
def test_inferences_beyond_quotas_wait_for_all_inferences_within_quotas(
    arrivals: list[tuple[str, int]], beyond_it: set[str], options: dict[str, object]
) -> None:
    driver = CoreDriver(SchedulerCore("justitia", {"fairness": "tenant", **options}, tenants=_FLAT))
    for number, (name, cost) in enumerate(arrivals):
        application_id = f"{name}{number}"
        driver.open(application_id, cost, tenant=_TENANT_OF[name])
        if name in beyond_it:
            driver.handle(ev.ApplicationDeprioritised(application_id, True))
        driver.submit(f"q{number}", application_id)
    core = driver.core
    granted: list[str] = []
    while core.ledger.queue.first() is not None:
        number = len(granted)
        done = {granted[-1]: 10} if granted else {}
        driver.pull(seats=1, finished=done)
        granted.append(next(iter(core.state.leases)))
        lease = core.state.leases[granted[-1]]
        waiting = [one for one in core.state.applications.values() if one.waiting]
        taken = core.state.applications[core.state.inferences[lease.request_id].application_id]
        assert not taken.is_deprioritised or all(one.is_deprioritised for one in waiting)
        assert len(granted) == number + 1

    assert len(granted) == len(arrivals)


_FLAT = TenantTree({"X": TenantNode(weight=5.0), "Y": TenantNode(weight=0.01)})
