"""Both levels of fairness between tenants against exact fluid servers, over random operations."""

import json
from fractions import Fraction
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.core.clock.tenant_share import TenantShare
from justitia_ray.core.clock.virtual_clock import VirtualClock
from tests.exact import exact
from tests.oracles.tenant_gps import ExactTenantShare
from tests.property.share_steps import VERBS, WORK, Pair, Step, apply_step, step_lists

_NAMES = st.sampled_from("abcdef")
_TENANT_OF = dict(zip("abcdef", "XXXYYZ", strict=True))
_WEIGHTS = st.sampled_from([Fraction(1), Fraction(1), Fraction(2), Fraction(1, 2), Fraction(7, 5)])
_STEPS = step_lists(VERBS, _NAMES, _WEIGHTS, 35)


class TenantPair(Pair):
    """Accounts with tenants and their reference; a reused name stands for a new application."""

    share: TenantShare
    oracle: ExactTenantShare

    def __init__(self) -> None:
        super().__init__()
        self.share = TenantShare(VirtualClock(exact(0)))
        self.oracle = ExactTenantShare()
        self._lives: dict[str, str] = {}

    def id_of(self, name: str) -> str:
        return self._lives.get(name, "")

    def arrive(self, step: Step) -> None:
        name = self._lives[step.name] = f"{step.name}{self.arrivals}"
        tenant, weight = _TENANT_OF[step.name], exact(step.weight)
        self.share.arrive(name, exact(step.work), weight, self.arrivals, tenant)
        self.oracle.open(name, tenant, step.work, step.weight)


@given(_STEPS)
def test_shares_of_tenants_and_applications_equal_exact_fluid_servers(steps: list[Step]) -> None:
    """Virtual times, finish tags and sort keys are equal after every step."""
    pair = TenantPair()
    for step in steps:
        before = pair.share.clock.virtual_time
        pair.apply(step)

        assert before <= pair.share.clock.virtual_time
        assert pair.oracle.gps.virtual_time == pair.share.clock.virtual_time
        for name in pair.present():
            assert pair.oracle.tag(name) == pair.share.tag_in_tenant(name), name
            assert pair.oracle.key(name) == pair.share.tag(name), name
        busy = {n for n, s in pair.share.clock.sessions().items() if s.active}

        assert pair.oracle.gps.busy() == busy


@given(_STEPS)
def test_both_levels_of_gps_have_equal_work_left(steps: list[Step]) -> None:
    """No level gives service that another did not receive, and all of it was charged."""
    pair = TenantPair()
    for step in steps:
        pair.apply(step)
        for name, tenant in pair.share.nodes.kept_leaves().items():
            root = pair.share.clock.session(name)
            owed = tenant.server.weight * max(0, root.finish - tenant.server.since)

            assert owed == tenant.gps.backlog() == tenant.server.total
        live = [account for account in pair.share.accounts.values() if not account.withdrawn]

        assert sum(a.charged - a.attained for a in live) == pair.share.clock.backlog()


@given(_STEPS, WORK)
def test_received_service_does_not_change_sort_keys(steps: list[Step], work: Fraction) -> None:
    """Only charges and refunds change a sort key, so the order of grants holds during service."""
    pair = TenantPair()
    for step in steps:
        pair.apply(step)
    present = pair.present()
    before = {name: (pair.share.tag(name), pair.share.tag_in_tenant(name)) for name in present}
    pair.share.clock.serve(exact(work))

    assert before == {
        name: (pair.share.tag(name), pair.share.tag_in_tenant(name)) for name in present
    }

    for tenant in pair.share.nodes.kept_leaves().values():
        tenant.catch_up(pair.share.clock.virtual_time, idle=False)

    assert before == {
        name: (pair.share.tag(name), pair.share.tag_in_tenant(name)) for name in present
    }


@given(_STEPS)
def test_sort_key_below_virtual_time_does_not_change(steps: list[Step]) -> None:
    """Work that GPS has finished precedes work that is requested later."""
    pair = TenantPair()
    frozen: dict[str, float] = {}
    for step in steps:
        touched = {step.name, *(name for name, _ in step.others)}
        pair.apply(step)
        now = pair.share.clock.virtual_time
        keys = {name: pair.share.tag(name) for name in pair.present()}

        kept = {n: key for n, key in frozen.items() if n in keys and n[0] not in touched}

        assert kept == {name: keys[name] for name in kept}
        frozen = {name: key for name, key in keys.items() if key <= now}


@given(_STEPS)
def test_resuming_an_idle_application_does_not_change_its_finish_tag(steps: list[Step]) -> None:
    """The tag may be read at any time, and reading it changes nothing."""
    pair = TenantPair()
    for step in steps:
        pair.apply(step)
    for name, account in pair.share.accounts.items():
        if account.withdrawn:
            foretold = pair.share.tag(name), pair.share.tag_in_tenant(name)
            assert foretold == (pair.share.tag(name), pair.share.tag_in_tenant(name))
            pair.share.resume(name)

            assert foretold == (pair.share.tag(name), pair.share.tag_in_tenant(name))


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
    share = TenantShare()
    for sequence, (verb, name, work, weight) in enumerate(steps):
        account = share.accounts.get(name)
        if verb == "arrive" and account is None:
            # An ended application may still have work in its old tenant, so each gets a new one.
            # another.
            share.arrive(name, work, weight, sequence, "XYZ"[sequence % 3])
        elif account is not None:
            apply_step(share, verb, name, work, weight)
    return share


@given(_FLOAT_STEPS)
def test_rounding_errors_of_the_work_left_are_small(
    steps: list[tuple[str, str, float, float]],
) -> None:
    """The service computes in floats: sums are exact to a part in 1e9 of all service."""
    share = _run_in_floats(steps)
    live = [account for account in share.accounts.values() if not account.withdrawn]
    scale = 1 + sum(work for _, _, work, _ in steps) * 10

    assert abs(sum(a.charged - a.attained for a in live) - share.clock.backlog()) < scale * 1e-9
    for name, tenant in share.nodes.kept_leaves().items():
        root = share.clock.session(name)
        owed = tenant.server.weight * max(0, root.finish - tenant.server.since)

        assert abs(owed - tenant.gps.backlog()) < scale * 1e-9
        assert abs(owed - tenant.server.total) < scale * 1e-9


@given(_FLOAT_STEPS, st.randoms(use_true_random=False))
def test_restored_accounts_give_exactly_equal_sort_keys(
    steps: list[tuple[str, str, float, float]], shuffled: Random
) -> None:
    """Float keys are equal to the last bit, in whatever order a store returns the records."""
    share = _run_in_floats(steps)
    names = sorted(share.sessions())
    shuffled.shuffle(names)
    records = {name: json.loads(json.dumps(share.session_record(name))) for name in names}
    restored = TenantShare(VirtualClock(share.clock.virtual_time))
    for name, record in records.items():
        restored.prepare_restore(name, record)
    for name, record in records.items():
        restored.restore_session(name, record, live=name in share.accounts)
    restored.accounts.update(share.accounts)

    assert records == {name: restored.session_record(name) for name in names}
    for name in share.accounts:
        assert share.tag(name) == restored.tag(name)
        assert share.tag_in_tenant(name) == restored.tag_in_tenant(name)
