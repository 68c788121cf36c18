"""Each invariant of the state fails when the state is damaged."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.clock.fair_share import Account
from justitia_ray.core.clock.tenant import Tenant
from justitia_ray.core.clock.tenant_share import TenantShare
from justitia_ray.core.entities import Lease, move
from justitia_ray.core.footprints import Footprint
from justitia_ray.core.invariants import RULES, InvariantViolation, check, check_rule
from justitia_ray.core.policies.guarded.policy import GuardedPolicy
from justitia_ray.core.states import ApplicationState, InferenceState
from tests.core_driver import CoreDriver

Damage = Callable[[CoreDriver], object]


ALL_RULES = (*RULES, *GuardedPolicy.INVARIANTS)


def _busy(clock: str = "served", fairness: str = "application") -> CoreDriver:
    """Return a core with x running, y leased, z waiting, and b in a tool gap."""
    options = {"clock": clock, "fairness": fairness}
    driver = CoreDriver(SchedulerCore("justitia", options, lease_prefix="1-"))
    driver.open("a", 1000)
    driver.open("b", 70)
    for name in ("x", "y", "z"):
        driver.submit(name)
    driver.pull(seats=2)
    driver.pull(progress={"1-1": 3}, seats=2)
    return driver


def _move_to_claimed(d: CoreDriver) -> None:
    d.application().held_back["z"] = d.inference("z")


def _forget_waiting(d: CoreDriver) -> None:
    waiting = d.application().waiting
    for inference in list(waiting):
        waiting.remove_inference(inference)
    d.core.ledger.queue.touch(d.application())


def _wait_out_of_order(d: CoreDriver) -> None:
    d.submit("zz")
    d.application().waiting.add_inference(d.inference("zz"), (0.0,))
    d.inference("zz").submitted_at += 1
    d.core.ledger.queue.touch(d.application())


def _keep_out_of_no_suspect_ingress(d: CoreDriver) -> None:
    inference = d.inference("z")
    d.core.ledger.leave(d.application(), inference)
    d.application().held_back["z"] = inference
    move(inference, InferenceState.SUSPENDED)
    d.core.ingresses.suspended += 1


def _fall_silent_and_wait(d: CoreDriver) -> None:
    d.core.ingresses.suspect.add("i0")


def _list_no_inference(d: CoreDriver) -> None:
    d.core.ingresses.remove_inference(d.inference("z"))


def _count_one_as_suspended(d: CoreDriver) -> None:
    d.core.ingresses.suspended += 1


def _lose_ingress(d: CoreDriver) -> None:
    d.core.state.ingresses.clear()


def _lease_twice(d: CoreDriver) -> None:
    d.core.state.leases["1-9"] = Lease("1-9", "x", "r0", 0.0, 0)


def _suspect_two_on_one_replica(d: CoreDriver) -> None:
    d.core.suspects.note_death("r9", [(d.inference(name), 1.0) for name in ("x", "y")])


def _lose_replica(d: CoreDriver) -> None:
    d.core.state.replicas.clear()


def _fill_unknown(d: CoreDriver) -> None:
    d.core.state.replicas["r0"].leases["1-9"] = Footprint(1, 1, 1, "a")


def _lose_lease(d: CoreDriver) -> None:
    del d.core.state.leases["1-1"]
    del d.core.state.replicas["r0"].leases["1-1"]


def _rename_lease(d: CoreDriver) -> None:
    d.core.state.leases["1-1"].lease_id = "1-7"


def _leave_queue(d: CoreDriver) -> None:
    d.core.ledger.queue = type(d.core.ledger.queue)()


def _queue_idle(d: CoreDriver) -> None:
    inference = d.application().waiting.first
    d.application("b").waiting.add_inference(inference, inference.order)
    d.core.ledger.queue.touch(d.application("b"))
    d.application("b").waiting.remove_inference(inference)


def _change_key(d: CoreDriver) -> None:
    d.open("c", 5000)
    d.submit("c1", "c")
    d.application("c").sequence = 0
    d.core.ledger.fair_share.clock.session("c").finish = 0.5


def _hide_a_move(d: CoreDriver) -> None:
    """Two applications change places in GPS without a notification."""
    d.core.handle(ev.PolicyChanged("justitia", (("order", "sgps"),), "peak"), d.now)
    d.open("c", 5000)
    d.submit("c1", "c")
    check(d.core)
    d.core.ledger.fair_share.accounts["c"].charged = 1
    d.core.ledger.fair_share.clock.session("c").finish = 0.5


def _drop_account(d: CoreDriver) -> None:
    del d.core.ledger.fair_share.accounts["b"]


def _add_account(d: CoreDriver) -> None:
    d.core.ledger.fair_share.accounts["n"] = Account(1, 1, 2)


def _drop_session(d: CoreDriver) -> None:
    del d.core.ledger.fair_share.clock._sessions["b"]


def _release_session(d: CoreDriver) -> None:
    d.core.ledger.fair_share.clock.session("a").released = True


def _session_without_an_account(d: CoreDriver) -> None:
    d.core.ledger.fair_share.clock.charge("n", 5, 1, 9)


def _other_weight(d: CoreDriver) -> None:
    d.application().weight = 2


def _charge_nothing(d: CoreDriver) -> None:
    d.account().charged += 1


def _withdraw_busy(d: CoreDriver) -> None:
    d.core.ledger.fair_share.withdraw("a")


def _keep_idle(d: CoreDriver) -> None:
    d.core.ledger.fair_share.resume("b")


def _call_the_busy_idle(d: CoreDriver) -> None:
    d.application("a").move(ApplicationState.IDLE, d.now)


def _call_the_idle_open(d: CoreDriver) -> None:
    d.application("b").move(ApplicationState.OPEN, d.now)


def _recover_without_a_restart(d: CoreDriver) -> None:
    application = d.application("b")
    application.state = ApplicationState.OPENING
    application.move(ApplicationState.RECOVERING, d.now)


def _forget_idle_since(d: CoreDriver) -> None:
    d.application("b").idle_since = None


def _change_state_beside_the_story(d: CoreDriver) -> None:
    d.application("b").state = ApplicationState.CLOSED


def _index_the_busy(d: CoreDriver) -> None:
    d.core.applications.settled_since_report["a"] = None


def _weigh_wrong(d: CoreDriver) -> None:
    d.core.ledger.fair_share.clock._active_weight = 5


def _activate(d: CoreDriver) -> None:
    d.core.ledger.fair_share.clock.session("b").active = True


def _overfill(d: CoreDriver) -> None:
    d.core.state.replicas["r0"].leases["1-1"] = Footprint(5, 2, 10, "a")


def _await_a_prompt_twice(driver: CoreDriver) -> None:
    next(iter(driver.core.state.replicas.values())).uncomputed_tokens += 1


def _count_memory_twice(d: CoreDriver) -> None:
    d.core.state.replicas["r0"].leases.context_tokens += 8


def _book_nowhere(d: CoreDriver) -> None:
    d.application().unfinished_kv_token_time += 1


def _attain_less(d: CoreDriver) -> None:
    account = d.account()
    account.charged -= account.attained
    account.attained = 0


def _wrong_state(d: CoreDriver) -> None:
    d.inference("x").state = InferenceState.WAITING


def _wrong_owner(d: CoreDriver) -> None:
    d.inference("z").application_id = "b"


def _keep_lease_id(d: CoreDriver) -> None:
    d.inference("z").lease_id = "1-1"


def _unknown_inference(d: CoreDriver) -> None:
    d.application().in_flight.add("nobody")


def _tenant(d: CoreDriver) -> Tenant:
    share = d.core.ledger.fair_share
    assert isinstance(share, TenantShare)
    return share.nodes.kept_leaves()["tenant"]


def _charge_inside_only(d: CoreDriver) -> None:
    _tenant(d).gps.charge("a", 5, 1, 1)


def _charge_server_only(d: CoreDriver) -> None:
    _tenant(d).server.charge("a", _tenant(d).gps.session("a").finish, 1, 5)


def _charge_root_only(d: CoreDriver) -> None:
    d.core.ledger.fair_share.clock.charge("tenant", 5, 1, 1)


def _weigh_inside_only(d: CoreDriver) -> None:
    tenant = _tenant(d)
    tenant.look(d.core.ledger.fair_share.clock.virtual_time, idle=False)
    root = d.core.ledger.fair_share.clock.session("tenant")
    tenant.server.weight = 2
    root.finish = tenant.server.since + (root.finish - tenant.server.since) / 2


def _let_pass_who_has_no_slack(d: CoreDriver) -> None:
    d.handle(ev.PolicyChanged("justitia", (("fairness", "tenant"), ("order", "sgps"))))
    d.open("c", 5000)
    d.submit("c1", "c")
    _order_of_tenant(d).first = lambda: "c"


def _let_pass_while_late(d: CoreDriver) -> None:
    _let_pass_who_has_no_slack(d)
    d.core.ledger.fair_share.clock.serve(1000)


def _order_of_tenant(d: CoreDriver) -> Any:
    """Return the order of the only tenant, to be changed."""
    members = d.core.ledger.queue._members
    order = members["tenant"]
    changed: Any = SimpleNamespace(least=order.least, lets_pass=True)
    members["tenant"] = changed
    return changed


def _keep_session_inside(d: CoreDriver) -> None:
    _tenant(d).restore("n", 0, 1, 9, 0, None, live=True)


def _forget_application_counted(d: CoreDriver) -> None:
    d.core.state.open_applications.depart(d.application().tenant, 0.0)


def _count_inference_of_nobody(d: CoreDriver) -> None:
    d.core.state.known_inferences.arrive("nobody")


def _tally_nothing_waiting(d: CoreDriver) -> None:
    d.core.state.counters.waiting_kv_tokens = 0


def _tally_nobody(d: CoreDriver) -> None:
    d.core.state.counters.waiting_kv_token_time += 1


def _charge_for_no_prompt(d: CoreDriver) -> None:
    d.application().pending_prefill += 1


def _forgive_nothing(d: CoreDriver) -> None:
    d.application().unfinished_forgiven += 1


DAMAGES: list[tuple[str, Damage]] = [
    ("prefill_is_what_was_paid", _charge_for_no_prompt),
    ("prefill_is_what_was_paid", _forgive_nothing),
    ("counters_sum_what_waits", _tally_nothing_waiting),
    ("counters_sum_what_waits", _tally_nobody),
    ("quotas_count_what_is_there", _forget_application_counted),
    ("quotas_count_what_is_there", _count_inference_of_nobody),
    ("inferences_are_in_one_place", _move_to_claimed),
    ("inferences_are_in_one_place", _forget_waiting),
    ("inferences_are_in_one_place", _wrong_state),
    ("inferences_are_in_one_place", _wrong_owner),
    ("inferences_are_in_one_place", _keep_lease_id),
    ("inferences_are_in_one_place", _unknown_inference),
    ("suspect_ingresses_are_suspended", _keep_out_of_no_suspect_ingress),
    ("suspect_ingresses_are_suspended", _fall_silent_and_wait),
    ("suspect_ingresses_are_suspended", _list_no_inference),
    ("suspect_ingresses_are_suspended", _count_one_as_suspended),
    ("suspect_ingresses_are_suspended", _lose_ingress),
    ("waiting_inferences_are_in_order", _wait_out_of_order),
    ("leases_agree", _lease_twice),
    ("leases_agree", _lose_replica),
    ("leases_agree", _fill_unknown),
    ("leases_agree", _lose_lease),
    ("leases_agree", _rename_lease),
    ("memory_counts_once", _count_memory_twice),
    ("caches_agree", _await_a_prompt_twice),
    ("open_suspects_are_apart", _suspect_two_on_one_replica),
    ("queue_holds_what_waits", _leave_queue),
    ("queue_holds_what_waits", _queue_idle),
    ("queue_holds_what_waits", _change_key),
    ("first_touches_no_promise", _hide_a_move),
    ("accounts_are_of_live_applications", _drop_account),
    ("accounts_are_of_live_applications", _add_account),
    ("accounts_are_of_live_applications", _drop_session),
    ("accounts_are_of_live_applications", _release_session),
    ("accounts_are_of_live_applications", _session_without_an_account),
    ("accounts_are_of_live_applications", _other_weight),
    ("gps_owes_what_was_charged", _charge_nothing),
    ("idle_applications_are_withdrawn", _withdraw_busy),
    ("idle_applications_are_withdrawn", _keep_idle),
    ("applications_are_in_their_states", _call_the_busy_idle),
    ("applications_are_in_their_states", _call_the_idle_open),
    ("applications_are_in_their_states", _recover_without_a_restart),
    ("applications_are_in_their_states", _forget_idle_since),
    ("applications_are_in_their_states", _change_state_beside_the_story),
    ("applications_are_in_their_states", _index_the_busy),
    ("active_weight_is_the_sum", _weigh_wrong),
    ("active_weight_is_the_sum", _activate),
    ("replicas_have_seats_for_their_leases", _overfill),
    ("service_is_what_was_metered", _book_nowhere),
    ("service_is_what_was_metered", _attain_less),
]


TENANT_DAMAGES: list[tuple[str, Damage]] = [
    ("tenants_are_owed_the_same_at_both_levels", _charge_inside_only),
    ("tenants_are_owed_the_same_at_both_levels", _charge_server_only),
    ("tenants_are_owed_the_same_at_both_levels", _charge_root_only),
    ("tenants_are_owed_the_same_at_both_levels", _weigh_inside_only),
    ("accounts_are_of_live_applications", _keep_session_inside),
    ("first_touches_no_promise", _let_pass_who_has_no_slack),
    ("first_touches_no_promise", _let_pass_while_late),
]


@pytest.mark.parametrize(
    ("fairness", "rule", "damage"),
    [
        pytest.param(fairness, rule, damage, id=damage.__name__.strip("_"))
        for fairness, damages in (("application", DAMAGES), ("tenant", TENANT_DAMAGES))
        for rule, damage in damages
    ],
)
def test_damage_breaks_its_rule(fairness: str, rule: str, damage: Damage) -> None:
    """An invariant that cannot fail checks nothing; both tenant levels are compared."""
    driver = _busy(fairness=fairness)
    check(driver.core)
    damage(driver)
    (function,) = [function for function in ALL_RULES if function.__name__ == rule]
    with pytest.raises(InvariantViolation, match=f"^{rule}: "):
        check_rule(function, driver.core)
    with pytest.raises(InvariantViolation):
        check(driver.core)


def test_every_rule_is_broken_by_a_damage() -> None:
    """A new invariant needs a new damage in this file."""
    damages = [*DAMAGES, *TENANT_DAMAGES]

    assert {function.__name__ for function in ALL_RULES} == {rule for rule, _ in damages}


def test_nominal_clock_is_checked_by_the_applicable_rules_only() -> None:
    """The nominal clock neither settles nor withdraws."""
    driver = _busy("nominal")
    driver.account().charged += 1
    check(driver.core)

    assert not driver.account("b").withdrawn
