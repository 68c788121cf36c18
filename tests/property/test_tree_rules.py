"""Fairness over a tree of tenants against exact fluid servers, over random operations."""

import json
from fractions import Fraction
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.core.clock.branch import Branch
from justitia_ray.core.clock.tenant import Tenant
from justitia_ray.core.clock.tenant_share import TenantShare
from justitia_ray.core.clock.virtual_clock import VirtualClock
from justitia_ray.core.tenants import TenantNode, TenantTree
from tests.exact import exact
from tests.oracles.tree_gps import ExactTreeShare
from tests.property.profiles import examples
from tests.property.share_steps import VERBS, WORK, Pair, Step, apply_step, step_lists

TENANT_OF = {
    "a": "X",
    "b": "X/p",
    "c": "X/q/u",
    "d": "X/q/v",
    "e": "X/q",
    "f": "Y",
    "g": "Y/r",
    "h": "Z/s/t",
    "i": "Z",
    "j": "X/q/v/w",
}
_NAMES = st.sampled_from("".join(TENANT_OF))
_WEIGHTS = st.sampled_from([Fraction(1), Fraction(1), Fraction(2), Fraction(1, 2), Fraction(7, 5)])
_STEPS = step_lists(VERBS, _NAMES, _WEIGHTS, 30)
_STEPS_WITH_MISSES = step_lists((*VERBS, "miss", "miss"), _NAMES, _WEIGHTS, 30)
_TREE = {
    **{path: Fraction(1) for path in ("Y", "Z", "Z/s", "X/q/v")},
    "X": Fraction(3),
    "X/q": Fraction(2),
    "X/q/u": Fraction(1, 3),
    "Y/r": Fraction(5),
}


class TreePair(Pair):
    """Accounts with a tenant tree and their reference; a reused name is a new application."""

    share: TenantShare
    oracle: ExactTreeShare

    def __init__(self) -> None:
        super().__init__()
        tree = {path: TenantNode(weight=exact(weight)) for path, weight in _TREE.items()}
        self.share = TenantShare(VirtualClock(exact(0)), TenantTree(tree))
        self.oracle = ExactTreeShare(_TREE)
        self._lives: dict[str, str] = {}

    def id_of(self, name: str) -> str:
        return self._lives.get(name, "")

    def arrive(self, step: Step) -> None:
        name = self._lives[step.name] = f"{step.name}{self.arrivals}"
        tenant = TENANT_OF[step.name]
        self.share.arrive(name, exact(step.work), exact(step.weight), self.arrivals, tenant)
        self.oracle.open(name, tenant, step.work, step.weight)


@examples(30)
@given(_STEPS)
def test_sort_keys_at_every_tenant_node_equal_exact_gps(steps: list[Step]) -> None:
    """Virtual time and sort keys are equal after every step, without rounding."""
    pair = TreePair()
    for step in steps:
        pair.apply(step)

        assert pair.oracle.gps.virtual_time == pair.share.clock.virtual_time
        keys = pair.oracle.keys()
        for name in pair.present():
            assert keys[name] == pair.share.tag(name), (name, step)


def _owed_by_parent(share: TenantShare, node: Branch | Tenant) -> float:
    clock = share.clock if node.parent is None else node.parent.clock
    since = node.server.since if isinstance(node, Tenant) else node.since
    return node.weight * max(0, clock.session(node.name).finish - since)


@examples(60)
@given(_STEPS)
def test_every_tenant_node_and_its_parent_agree_on_the_work_left(
    steps: list[Step],
) -> None:
    """No level gives service that another did not receive, and all of it was charged."""
    pair = TreePair()
    for step in steps:
        pair.apply(step)
        for leaf in pair.share.nodes.kept_leaves().values():
            owed = _owed_by_parent(pair.share, leaf)
            assert owed == leaf.gps.backlog() == leaf.server.total
        for branch in pair.share.nodes.kept_branches().values():
            assert _owed_by_parent(pair.share, branch) == branch.clock.backlog()
        live = [account for account in pair.share.accounts.values() if not account.withdrawn]

        assert sum(a.charged - a.attained for a in live) == pair.share.clock.backlog()


@examples(60)
@given(_STEPS_WITH_MISSES)
def test_cache_misses_are_charged_at_every_level_of_the_tenant_tree(steps: list[Step]) -> None:
    """Prefill after a cache miss is charged and served at every level at once."""
    tree = {path: TenantNode(weight=exact(weight)) for path, weight in _TREE.items()}
    share = TenantShare(VirtualClock(exact(0)), TenantTree(tree))
    for number, step in enumerate(steps):
        name, work, before = step.name, exact(step.work), share.clock.virtual_time
        tags = {one: share.tag_in_tenant(one) for one in share.accounts}
        if name not in share.accounts:
            share.arrive(name, work, exact(step.weight), number, TENANT_OF[name])
        elif step.verb == "miss":
            share.miss(name, work)
            assert all(share.tag_in_tenant(one) == tags[one] for one in _charged_names(share))
        else:
            apply_step(share, step.verb, name, work, exact(step.weight))

        assert before <= share.clock.virtual_time
        for leaf in share.nodes.kept_leaves().values():
            share._update_path(leaf)
            owed = _owed_by_parent(share, leaf)
            assert owed == leaf.gps.backlog() == leaf.server.total
        for branch in share.nodes.kept_branches().values():
            assert _owed_by_parent(share, branch) == branch.clock.backlog()
        live = [share.accounts[one] for one in _charged_names(share)]

        assert sum(a.charged - a.attained for a in live) == share.clock.backlog()


def _charged_names(share: TenantShare) -> list[str]:
    return [name for name, account in share.accounts.items() if not account.withdrawn]


@examples(60)
@given(_STEPS, WORK)
def test_received_service_does_not_change_sort_keys_at_any_level(
    steps: list[Step], work: Fraction
) -> None:
    """Only charges and refunds change a sort key, so the order of grants holds during service."""
    pair = TreePair()
    for step in steps:
        pair.apply(step)
    before = _all_keys(pair)
    pair.share.clock.serve(exact(work))

    assert before == _all_keys(pair)

    for leaf in pair.share.nodes.kept_leaves().values():
        pair.share._update_path(leaf)

    assert before == _all_keys(pair)


def _all_keys(pair: TreePair) -> dict[str, list[float]]:
    share = pair.share
    found = {}
    for name in pair.present():
        leaf = share.nodes.leaf_of(name)
        assert leaf is not None
        above: Branch | None = leaf.parent
        found[name] = [share.tag(name)]
        while above is not None:
            found[name].append(share.keys.key_in(above, name))
            above = above.parent
    return found


@examples(60)
@given(_STEPS)
def test_choice_by_tree_level_finds_the_smallest_sort_key(steps: list[Step]) -> None:
    """Choosing the smallest child at each level gives the smallest key of all."""
    pair = TreePair()
    for step in steps:
        pair.apply(step)
    keys = _all_keys(pair)
    share = pair.share
    for one in keys:
        for other in keys:
            path = {b.path for b in _branches_above(share, one)} & {
                b.path for b in _branches_above(share, other)
            }
            for shared in path:
                branch = share.nodes.branches.get(shared)
                inner = share.keys.key_in(branch, one) - share.keys.key_in(branch, other)
                outer = keys[one][0] - keys[other][0]
                assert inner * outer >= 0
                assert outer or not inner or keys[one][0] <= share.clock.virtual_time


def _branches_above(share: TenantShare, name: str) -> list[Branch]:
    leaf = share.nodes.leaf_of(name)
    above, found = leaf.parent if leaf is not None else None, []
    while above is not None:
        found.append(above)
        above = above.parent
    return found


@examples(60)
@given(_STEPS)
def test_resuming_an_idle_application_does_not_change_its_sort_key(steps: list[Step]) -> None:
    """The key may be read at any time, and reading it changes nothing."""
    pair = TreePair()
    for step in steps:
        pair.apply(step)
    for name, account in pair.share.accounts.items():
        if account.withdrawn:
            foretold = pair.share.tag(name), pair.share.tag_in_tenant(name)
            assert foretold == (pair.share.tag(name), pair.share.tag_in_tenant(name))
            pair.share.resume(name)

            assert foretold == (pair.share.tag(name), pair.share.tag_in_tenant(name))


@examples(60)
@given(_STEPS)
def test_events_in_another_subtree_change_no_sort_key(
    steps: list[Step],
) -> None:
    """Only the common ancestors of both children see a change."""
    pair = TreePair()
    share = pair.share
    for step in steps:
        touched = {TENANT_OF[name] for name in (step.name, *(name for name, _ in step.others))}
        before = {
            name: (leaf.parent, share.keys.key_in(leaf.parent, name))
            for name in pair.present()
            if (leaf := share.nodes.leaf_of(name)).path not in touched
        }
        pair.apply(step)
        for name, (parent, key) in before.items():
            leaf = share.nodes.leaf_of(name)
            if leaf is not None and leaf.parent is parent:
                assert share.keys.key_in(parent, name) == key, (name, step)


@examples(60)
@given(_STEPS)
def test_splitting_a_tenant_changes_no_sort_key_of_others(steps: list[Step]) -> None:
    """Splitting gains nothing: other tenants' keys are equal with and without it."""
    tops = TenantTree({path: TenantNode(weight=exact(1)) for path in "XYZ"})
    split = TenantShare(VirtualClock(exact(0)), tops)
    whole = TenantShare(VirtualClock(exact(0)), tops)
    for sequence, step in enumerate(steps):
        tenant = TENANT_OF[step.name]
        for share, path in (
            (split, tenant),
            (whole, "X" if tenant.startswith("X") else tenant),
        ):
            if step.verb == "arrive" and step.name not in share.accounts:
                weight = exact(step.weight)
                share.arrive(step.name, exact(step.work + 2), weight, sequence, path)
            elif step.name in share.accounts:
                apply_step(share, step.verb, step.name, exact(step.work), exact(step.weight))

        assert split.clock.virtual_time == whole.clock.virtual_time
        for name, account in split.accounts.items():
            if not (account.withdrawn or TENANT_OF[name].startswith("X")):
                assert split.tag(name) == whole.tag(name), name
        if "X" in split.clock:
            assert split.clock.session("X").finish == whole.clock.session("X").finish


_FLOAT_STEPS = st.lists(
    st.tuples(
        st.sampled_from(VERBS),
        _NAMES,
        st.floats(0.001, 1e7),
        st.sampled_from([1.0, 1.0, 2.0, 0.3]),
    ),
    min_size=1,
    max_size=40,
)


def _run_in_floats(steps: list[tuple[str, str, float, float]]) -> TenantShare:
    share = TenantShare(tree=TenantTree({"X": TenantNode(weight=3.0)}))
    for sequence, (verb, name, work, weight) in enumerate(steps):
        account = share.accounts.get(name)
        if verb == "arrive" and account is None:
            share.arrive(name, work, weight, sequence, TENANT_OF[name])
        elif account is not None:
            apply_step(share, verb, name, work, weight)
    return share


def restored_from_records(share: TenantShare, names: list[str]) -> TenantShare:
    """Return accounts restored from records that went through JSON."""
    records = {name: json.loads(json.dumps(share.session_record(name))) for name in names}
    restored = TenantShare(VirtualClock(share.clock.virtual_time), share.nodes.weights)
    restored.restore_clock_state(json.loads(json.dumps(share.clock_state())))
    for name, record in records.items():
        restored.prepare_restore(name, record)
    for name, record in records.items():
        restored.restore_session(name, record, live=name in share.accounts)
    restored.accounts.update(share.accounts)
    restored.end_restore()
    assert records == {name: restored.session_record(name) for name in names}
    return restored


@examples(80)
@given(_FLOAT_STEPS, st.randoms(use_true_random=False))
def test_restored_tenant_tree_gives_exactly_equal_sort_keys(
    steps: list[tuple[str, str, float, float]], shuffled: Random
) -> None:
    """Float keys are equal to the last bit, in whatever order a store returns the records."""
    share = _run_in_floats(steps)
    share.take_changed()
    names = sorted(share.sessions())
    shuffled.shuffle(names)
    restored = restored_from_records(share, names)

    assert share.clock_state() == restored.clock_state()
    for name in share.accounts:
        assert share.tag(name) == restored.tag(name)
        assert share.tag_in_tenant(name) == restored.tag_in_tenant(name)
