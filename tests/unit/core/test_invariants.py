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
from justitia_ray.core.prefill import Prefill
from justitia_ray.core.prefill_account import PrefillAccount
from justitia_ray.core.states import ApplicationState, InferenceState
from justitia_ray.cost import PrefillCost
from tests.core_driver import CoreDriver

Damage = Callable[[CoreDriver], object]


ALL_RULES = (*RULES, *GuardedPolicy.INVARIANTS)


def _create_busy_core(clock: str = "served", fairness: str = "application") -> CoreDriver:
    """Return a core with a running, a leased and a waiting inference and an idle application."""
    options = {"clock": clock, "fairness": fairness}
    driver = CoreDriver(SchedulerCore("justitia", options, lease_prefix="1-"))
    driver.open("a", 1000)
    driver.open("b", 70)
    for name in ("x", "y", "z"):
        driver.submit(name)
    driver.pull(seats=2)
    driver.pull(progress={"1-1": 3}, seats=2)
    return driver


def _hold_back_waiting_inference(d: CoreDriver) -> None:
    d.application().held_back["z"] = d.inference("z")


def _forget_waiting_inferences(d: CoreDriver) -> None:
    waiting = d.application().waiting
    for inference in list(waiting):
        waiting.remove_inference(inference)
    d.core.ledger.queue.touch(d.application())


def _queue_inference_out_of_order(d: CoreDriver) -> None:
    d.submit("zz")
    d.application().waiting.add_inference(d.inference("zz"), (0.0,))
    d.inference("zz").submitted_at += 1
    d.core.ledger.queue.touch(d.application())


def _suspend_without_silent_ingress(d: CoreDriver) -> None:
    inference = d.inference("z")
    d.core.ledger.leave(d.application(), inference)
    d.application().held_back["z"] = inference
    move(inference, InferenceState.SUSPENDED)
    d.core.ingresses.suspended += 1


def _mark_ingress_silent_only(d: CoreDriver) -> None:
    d.core.ingresses.suspect.add("i0")


def _unlist_inference_of_ingress(d: CoreDriver) -> None:
    d.core.ingresses.remove_inference(d.inference("z"))


def _miscount_suspended(d: CoreDriver) -> None:
    d.core.ingresses.suspended += 1


def _forget_ingresses(d: CoreDriver) -> None:
    d.core.state.ingresses.clear()


def _lease_inference_twice(d: CoreDriver) -> None:
    d.core.state.leases["1-9"] = Lease("1-9", "x", "r0", 0.0, 0)


def _mark_two_killers_on_one_replica(d: CoreDriver) -> None:
    d.core.suspects.note_death("r9", [(d.inference(name), 1.0) for name in ("x", "y")])


def _forget_replicas(d: CoreDriver) -> None:
    d.core.state.replicas.clear()


def _add_footprint_without_lease(d: CoreDriver) -> None:
    d.core.state.replicas["r0"].leases["1-9"] = Footprint(1, 1, 1, "a")


def _forget_lease(d: CoreDriver) -> None:
    del d.core.state.leases["1-1"]
    del d.core.state.replicas["r0"].leases["1-1"]


def _change_lease_id(d: CoreDriver) -> None:
    d.core.state.leases["1-1"].lease_id = "1-7"


def _empty_queue(d: CoreDriver) -> None:
    d.core.ledger.queue = type(d.core.ledger.queue)()


def _queue_idle_application(d: CoreDriver) -> None:
    inference = d.application().waiting.first
    d.application("b").waiting.add_inference(inference, inference.order)
    d.core.ledger.queue.touch(d.application("b"))
    d.application("b").waiting.remove_inference(inference)


def _change_queue_key(d: CoreDriver) -> None:
    d.open("c", 5000)
    d.submit("c1", "c")
    d.application("c").sequence = 0
    d.core.ledger.fair_share.clock.session("c").finish = 0.5


def _reorder_gps_without_notice(d: CoreDriver) -> None:
    """Let two applications change places in GPS without a notification."""
    d.core.handle(ev.PolicyChanged("justitia", (("order", "sgps"),), "peak"), d.now)
    d.open("c", 5000)
    d.submit("c1", "c")
    check(d.core)
    d.core.ledger.fair_share.accounts["c"].charged = 1
    d.core.ledger.fair_share.clock.session("c").finish = 0.5


def _delete_account(d: CoreDriver) -> None:
    del d.core.ledger.fair_share.accounts["b"]


def _add_unknown_account(d: CoreDriver) -> None:
    d.core.ledger.fair_share.accounts["n"] = Account(1, 1, 2)


def _delete_session(d: CoreDriver) -> None:
    del d.core.ledger.fair_share.clock._sessions["b"]


def _release_live_session(d: CoreDriver) -> None:
    d.core.ledger.fair_share.clock.session("a").released = True


def _charge_unknown_session(d: CoreDriver) -> None:
    d.core.ledger.fair_share.clock.charge("n", 5, 1, 9)


def _change_application_weight(d: CoreDriver) -> None:
    d.application().weight = 2


def _miscount_charge(d: CoreDriver) -> None:
    d.account().charged += 1


def _withdraw_busy_application(d: CoreDriver) -> None:
    d.core.ledger.fair_share.withdraw("a")


def _resume_idle_application(d: CoreDriver) -> None:
    d.core.ledger.fair_share.resume("b")


def _mark_busy_application_idle(d: CoreDriver) -> None:
    d.application("a").move(ApplicationState.IDLE, d.now)


def _mark_idle_application_open(d: CoreDriver) -> None:
    d.application("b").move(ApplicationState.OPEN, d.now)


def _mark_recovering_without_restart(d: CoreDriver) -> None:
    application = d.application("b")
    application.state = ApplicationState.OPENING
    application.move(ApplicationState.RECOVERING, d.now)


def _forget_idle_since(d: CoreDriver) -> None:
    d.application("b").idle_since = None


def _close_without_transition(d: CoreDriver) -> None:
    d.application("b").state = ApplicationState.CLOSED


def _list_busy_application_as_settled(d: CoreDriver) -> None:
    d.core.applications.settled_since_report["a"] = None


def _miscount_active_weight(d: CoreDriver) -> None:
    d.core.ledger.fair_share.clock._active_weight = 5


def _activate_idle_session(d: CoreDriver) -> None:
    d.core.ledger.fair_share.clock.session("b").active = True


def _change_footprint(d: CoreDriver) -> None:
    d.core.state.replicas["r0"].leases["1-1"] = Footprint(5, 2, 10, "a")


def _miscount_uncomputed_tokens(driver: CoreDriver) -> None:
    next(iter(driver.core.state.replicas.values())).uncomputed_tokens += 1


def _miscount_context_tokens(d: CoreDriver) -> None:
    d.core.state.replicas["r0"].leases.context_tokens += 8


def _miscount_unfinished_kv_token_time(d: CoreDriver) -> None:
    d.application().unfinished_kv_token_time += 1


def _lower_attained_service(d: CoreDriver) -> None:
    account = d.account()
    account.charged -= account.attained
    account.attained = 0


def _mark_running_inference_waiting(d: CoreDriver) -> None:
    d.inference("x").state = InferenceState.WAITING


def _change_inference_owner(d: CoreDriver) -> None:
    d.inference("z").application_id = "b"


def _give_waiting_inference_a_lease(d: CoreDriver) -> None:
    d.inference("z").lease_id = "1-1"


def _add_unknown_inference_in_flight(d: CoreDriver) -> None:
    d.application().in_flight.add("nobody")


def _only_tenant(d: CoreDriver) -> Tenant:
    share = d.core.ledger.fair_share
    assert isinstance(share, TenantShare)
    return share.nodes.kept_leaves()["tenant"]


def _charge_tenant_gps_only(d: CoreDriver) -> None:
    _only_tenant(d).gps.charge("a", 5, 1, 1)


def _charge_tenant_server_only(d: CoreDriver) -> None:
    _only_tenant(d).server.charge("a", _only_tenant(d).gps.session("a").finish, 1, 5)


def _charge_root_clock_only(d: CoreDriver) -> None:
    d.core.ledger.fair_share.clock.charge("tenant", 5, 1, 1)


def _change_weight_inside_tenant_only(d: CoreDriver) -> None:
    tenant = _only_tenant(d)
    tenant.catch_up(d.core.ledger.fair_share.clock.virtual_time, idle=False)
    root = d.core.ledger.fair_share.clock.session("tenant")
    tenant.server.weight = 2
    root.finish = tenant.server.since + (root.finish - tenant.server.since) / 2


def _let_overtake_without_slack(d: CoreDriver) -> None:
    d.handle(ev.PolicyChanged("justitia", (("fairness", "tenant"), ("order", "sgps"))))
    d.open("c", 5000)
    d.submit("c1", "c")
    _queue_order_of_tenant(d).first = lambda: "c"


def _let_overtake_while_late(d: CoreDriver) -> None:
    _let_overtake_without_slack(d)
    d.core.ledger.fair_share.clock.serve(1000)


def _queue_order_of_tenant(d: CoreDriver) -> Any:
    """Return the queue order of the only tenant, as a copy that tests may change."""
    members = d.core.ledger.queue._members
    order = members["tenant"]
    changed: Any = SimpleNamespace(least=order.least, lets_pass=True)
    members["tenant"] = changed
    return changed


def _add_unknown_tenant_session(d: CoreDriver) -> None:
    _only_tenant(d).restore("n", 0, 1, 9, 0, None, live=True)


def _miscount_open_applications(d: CoreDriver) -> None:
    d.core.state.open_applications.depart(d.application().tenant, 0.0)


def _count_inference_of_unknown_tenant(d: CoreDriver) -> None:
    d.core.state.known_inferences.arrive("nobody")


def _miscount_waiting_kv_tokens(d: CoreDriver) -> None:
    d.core.state.counters.waiting_kv_tokens = 0


def _miscount_waiting_kv_token_time(d: CoreDriver) -> None:
    d.core.state.counters.waiting_kv_token_time += 1


def _charge_absent_prefill(d: CoreDriver) -> None:
    d.application().prefill = PrefillAccount(PrefillCost(1.0), pending=1)


def _expect_prefill_without_an_account(d: CoreDriver) -> None:
    next(iter(d.core.state.inferences.values())).prefill = Prefill(expected=1)


def _forgive_absent_service(d: CoreDriver) -> None:
    d.application().prefill = PrefillAccount(PrefillCost(1.0), forgiven=1)


DAMAGES: list[tuple[str, Damage]] = [
    ("prefill_is_what_was_paid", _charge_absent_prefill),
    ("prefill_is_what_was_paid", _forgive_absent_service),
    ("prefill_is_what_was_paid", _expect_prefill_without_an_account),
    ("counters_sum_what_waits", _miscount_waiting_kv_tokens),
    ("counters_sum_what_waits", _miscount_waiting_kv_token_time),
    ("quotas_count_what_is_there", _miscount_open_applications),
    ("quotas_count_what_is_there", _count_inference_of_unknown_tenant),
    ("inferences_are_in_one_place", _hold_back_waiting_inference),
    ("inferences_are_in_one_place", _forget_waiting_inferences),
    ("inferences_are_in_one_place", _mark_running_inference_waiting),
    ("inferences_are_in_one_place", _change_inference_owner),
    ("inferences_are_in_one_place", _give_waiting_inference_a_lease),
    ("inferences_are_in_one_place", _add_unknown_inference_in_flight),
    ("suspect_ingresses_are_suspended", _suspend_without_silent_ingress),
    ("suspect_ingresses_are_suspended", _mark_ingress_silent_only),
    ("suspect_ingresses_are_suspended", _unlist_inference_of_ingress),
    ("suspect_ingresses_are_suspended", _miscount_suspended),
    ("suspect_ingresses_are_suspended", _forget_ingresses),
    ("waiting_inferences_are_in_order", _queue_inference_out_of_order),
    ("leases_agree", _lease_inference_twice),
    ("leases_agree", _forget_replicas),
    ("leases_agree", _add_footprint_without_lease),
    ("leases_agree", _forget_lease),
    ("leases_agree", _change_lease_id),
    ("memory_counts_once", _miscount_context_tokens),
    ("caches_agree", _miscount_uncomputed_tokens),
    ("open_suspects_are_apart", _mark_two_killers_on_one_replica),
    ("queue_holds_what_waits", _empty_queue),
    ("queue_holds_what_waits", _queue_idle_application),
    ("queue_holds_what_waits", _change_queue_key),
    ("first_may_overtake", _reorder_gps_without_notice),
    ("accounts_are_of_live_applications", _delete_account),
    ("accounts_are_of_live_applications", _add_unknown_account),
    ("accounts_are_of_live_applications", _delete_session),
    ("accounts_are_of_live_applications", _release_live_session),
    ("accounts_are_of_live_applications", _charge_unknown_session),
    ("accounts_are_of_live_applications", _change_application_weight),
    ("gps_owes_what_was_charged", _miscount_charge),
    ("idle_applications_are_withdrawn", _withdraw_busy_application),
    ("idle_applications_are_withdrawn", _resume_idle_application),
    ("applications_are_in_their_states", _mark_busy_application_idle),
    ("applications_are_in_their_states", _mark_idle_application_open),
    ("applications_are_in_their_states", _mark_recovering_without_restart),
    ("applications_are_in_their_states", _forget_idle_since),
    ("applications_are_in_their_states", _close_without_transition),
    ("applications_are_in_their_states", _list_busy_application_as_settled),
    ("active_weight_is_the_sum", _miscount_active_weight),
    ("active_weight_is_the_sum", _activate_idle_session),
    ("replicas_have_seats_for_their_leases", _change_footprint),
    ("service_is_what_was_metered", _miscount_unfinished_kv_token_time),
    ("service_is_what_was_metered", _lower_attained_service),
]


TENANT_DAMAGES: list[tuple[str, Damage]] = [
    ("tenants_are_owed_the_same_at_both_levels", _charge_tenant_gps_only),
    ("tenants_are_owed_the_same_at_both_levels", _charge_tenant_server_only),
    ("tenants_are_owed_the_same_at_both_levels", _charge_root_clock_only),
    ("tenants_are_owed_the_same_at_both_levels", _change_weight_inside_tenant_only),
    ("accounts_are_of_live_applications", _add_unknown_tenant_session),
    ("first_may_overtake", _let_overtake_without_slack),
    ("first_may_overtake", _let_overtake_while_late),
]


@pytest.mark.parametrize(
    ("fairness", "rule", "damage"),
    [
        pytest.param(fairness, rule, damage, id=damage.__name__.strip("_"))
        for fairness, damages in (("application", DAMAGES), ("tenant", TENANT_DAMAGES))
        for rule, damage in damages
    ],
)
def test_each_kind_of_damaged_state_breaks_its_invariant(
    fairness: str, rule: str, damage: Damage
) -> None:
    """An invariant that cannot fail checks nothing."""
    driver = _create_busy_core(fairness=fairness)
    check(driver.core)
    damage(driver)
    (function,) = [function for function in ALL_RULES if function.__name__ == rule]
    with pytest.raises(InvariantViolation, match=f"^{rule}: "):
        check_rule(function, driver.core)
    with pytest.raises(InvariantViolation):
        check(driver.core)


def test_every_invariant_has_a_test_that_breaks_it() -> None:
    """A new invariant needs a new damage in this file."""
    damages = [*DAMAGES, *TENANT_DAMAGES]

    assert {function.__name__ for function in ALL_RULES} == {rule for rule, _ in damages}


def test_nominal_clock_is_exempt_from_invariants_of_settled_charges() -> None:
    """The paper's nominal clock neither settles charges nor withdraws idle applications."""
    driver = _create_busy_core("nominal")
    driver.account().charged += 1
    check(driver.core)

    assert not driver.account("b").withdrawn
