"""Prefill as a part of the cost, and who pays for a prompt that was computed before."""

import pytest

from justitia_ray.core import events as ev
from justitia_ray.core.entities import Outcome
from justitia_ray.core.lags import most_remaining_work
from justitia_ray.core.prefill import prefill_of_stages
from justitia_ray.core.prefill_ratios import PrefillRatios
from justitia_ray.core.prefixes import Prefix, pack_prefixes
from justitia_ray.core.scheduler import SchedulerCore
from justitia_ray.core.stages import ExpectedStage
from justitia_ray.cost import PrefillCost, kv_token_time
from tests.core_driver import PATIENT, CoreDriver

KV = 10_000
PRICE = 100


def core_with_replicas(
    replicas: int = 1, *, fairness: str = "application", prefix: str = "1-"
) -> CoreDriver:
    driver = CoreDriver(new_core(fairness, prefix))
    for number in range(replicas):
        driver.pull(f"r{number}", kv=KV, caches=True)
    return driver


def new_core(fairness: str = "application", prefix: str = "1-") -> SchedulerCore:
    return SchedulerCore(
        "justitia",
        {"fairness": fairness},
        timeouts=PATIENT,
        lease_prefix=prefix,
        prefill_cost=PrefillCost(PRICE),
    )


class TurnRunner:
    """Runs turns of applications one after another, with given numbers of cached tokens."""

    def __init__(self, driver: CoreDriver) -> None:
        self.driver = driver
        self._count = 0

    def open_application(self, name: str = "a", tenant: str = "tenant", cost: float = 2) -> None:
        self.driver.open(name, cost, tenant=tenant)

    def run_turn(self, prompt: int, found: int = 0, *, name: str = "a", output: int = 1) -> float:
        """Run a turn and return the service charged for it."""
        before = self.driver.account(name).attained
        self.start_turn(prompt, found, name=name)
        self.end_turn(prompt, found, output=output)
        return self.driver.account(name).attained - before

    def start_turn(self, prompt: int, found: int, *, name: str = "a") -> str:
        """Start a turn, and report its first token."""
        self._count += 1
        self.request = f"{name}/{self._count}"
        self.driver.now += 1
        self.driver.submit(self.request, name, prompt=prompt, output=1, max_output=100)
        self.lease = self.driver.lease_of(self.request)
        self.replica = self.driver.core.state.leases[self.lease].replica_id
        first = ev.LeaseProgress(self.lease, prompt, 1, running=True, cached_tokens=found)
        self.driver.handle(ev.ReplicaReported(self.replica, (first,), (), asks=True))
        return self.replica

    def end_turn(self, prompt: int, found: int, *, output: int = 1) -> None:
        ended = ev.LeaseFinished(self.lease, prompt, output, Outcome.FINISHED, cached_tokens=found)
        reported = ev.ReplicaReported(self.replica, (), (ended,), asks=True, withdraws=True)
        self.driver.handle(reported)

    def tenant_usage(self, tenant: str = "tenant") -> tuple[float, float]:
        """Return a tenant's usage without prefill, and its prefill, both in KV token-time."""
        totals = self.driver.core.state.usage.of(tenant, self.driver.now)
        return totals.kv_token_time, totals.prefill_token_time


def evict_all_contexts(driver: CoreDriver) -> None:
    """Remove all contexts from the core's table, as if other work had evicted them."""
    for replica in driver.core.state.replicas.values():
        replica.contexts.shrink(0)


def cost_without_prefill(prompt: int, output: int = 1) -> float:
    return kv_token_time(prompt, output)


def test_only_computed_prompt_tokens_are_charged_at_the_first_token() -> None:
    turns = TurnRunner(core_with_replicas())
    turns.open_application()

    assert turns.run_turn(1000) == PRICE * 1000 + cost_without_prefill(1000)
    assert turns.run_turn(1200, found=1000) == PRICE * 200 + cost_without_prefill(1200)
    assert turns.tenant_usage() == (
        cost_without_prefill(1000) + cost_without_prefill(1200),
        PRICE * 1200,
    )


def test_later_tokens_of_a_prompt_cost_more_because_of_attention() -> None:
    cost = PrefillCost(2, 0.5)

    assert cost.of(100, 100) == 200 + 2500
    assert cost.of(10, 100) == 20 + 475
    assert cost.of(100, 100) == cost.of(90, 90) + cost.of(10, 100)


def test_price_of_a_prompt_token_is_the_service_given_in_its_compute_time() -> None:
    cost = PrefillCost.from_step_times(10_000, 0.01, 2e-6, 1e-4, 1e-9)

    assert cost.per_token == pytest.approx(50)
    assert cost.per_pair == pytest.approx(5e-4)
    with pytest.raises(ValueError, match="a step takes 0"):
        PrefillCost.from_step_times(10_000, 0, 0, 1e-4)


def test_turn_moved_by_the_scheduler_pays_nothing_for_its_lost_cache() -> None:
    driver = core_with_replicas(2)
    turns = TurnRunner(driver)
    turns.open_application()
    turns.run_turn(1000)
    turns.run_turn(1100, found=1000)
    other = "r1" if turns.replica == "r0" else "r0"
    driver.pull(turns.replica, kv=KV, caches=True, stalled=True)
    driver.pull(other, kv=KV, caches=True)

    assert turns.run_turn(1200, found=0) == PRICE * 100 + cost_without_prefill(1200)
    assert turns.replica == other


def test_tenant_pays_for_recomputing_an_evicted_context() -> None:
    turns = TurnRunner(core_with_replicas())
    turns.open_application()
    turns.run_turn(1000)
    turns.run_turn(1100, found=1000)
    before = turns.tenant_usage()[1]
    evict_all_contexts(turns.driver)

    assert turns.run_turn(1200, found=0) == PRICE * 100 + cost_without_prefill(1200)
    assert turns.tenant_usage()[1] - before == PRICE * 1200


def test_unexpected_cache_hits_make_a_turn_cheaper() -> None:
    turns = TurnRunner(core_with_replicas())
    turns.open_application()

    assert turns.run_turn(1000, found=900) == PRICE * 100 + cost_without_prefill(1000)


@pytest.mark.parametrize("fairness", ["application", "tenant"])
def test_backlog_of_gps_equals_the_charges_after_cache_misses(fairness: str) -> None:
    """After each event, GPS owes applications and tenants as much as they were charged."""
    turns = TurnRunner(core_with_replicas(fairness=fairness))
    for name, tenant in (("a", "one/x"), ("b", "one/y"), ("c", "two")):
        turns.open_application(name, tenant, cost=10**6)
        turns.run_turn(1000, name=name)
        turns.run_turn(1100, found=1000, name=name)
    for name in "abc":
        evict_all_contexts(turns.driver)
        turns.run_turn(1200, found=0, name=name)
        turns.driver.handle(ev.ApplicationClosed(name))

    assert not turns.driver.core.state.applications


def test_cache_miss_delays_only_the_tenant_that_caused_it() -> None:
    keys = {}
    for misses in (False, True):
        turns = TurnRunner(core_with_replicas(fairness="tenant"))
        for name, tenant in (("a", "one"), ("b", "one"), ("c", "two")):
            turns.open_application(name, tenant, cost=10**7)
        turns.run_turn(1000)
        turns.run_turn(1100, found=1000)
        share = turns.driver.core.ledger.fair_share
        turns.driver.submit("c/w", "c", prompt=9000, output=1)
        turns.driver.submit("b/w", "b", prompt=9000, output=1)
        if misses:
            share.miss("a", exact_miss := 10**6)
        keys[misses] = {name: share.tag(name) for name in "abc"}

    assert keys[True]["c"] == keys[False]["c"]
    assert keys[True]["b"] - keys[False]["b"] == pytest.approx(exact_miss)


def _gps_owes_all_charges(driver: CoreDriver) -> bool:
    share = driver.core.ledger.fair_share
    live = [account for account in share.accounts.values() if not account.withdrawn]
    return bool(
        sum(account.charged - account.attained for account in live) == share.clock.backlog()
    )


def test_invariant_fails_if_a_cache_miss_only_moves_virtual_time() -> None:
    """GPS would owe less service than the replicas must give."""
    driver = core_with_replicas(fairness="tenant")
    driver.open("a", 10**6)
    driver.submit("a1", prompt=1000)
    share = driver.core.ledger.fair_share
    share.miss("a", 1000)
    assert _gps_owes_all_charges(driver)
    share.clock.serve(1000)
    assert not _gps_owes_all_charges(driver)


# --- attacks


def test_new_cache_salt_for_each_call_pays_for_all_prompt_tokens() -> None:
    turns = TurnRunner(core_with_replicas())
    turns.open_application()

    assert [PRICE * 1000 + cost_without_prefill(1000)] * 6 == [
        turns.run_turn(1000, found=0) for _ in range(6)
    ]


def test_new_long_prompt_pays_for_all_tokens_after_much_reuse() -> None:
    turns = TurnRunner(core_with_replicas())
    turns.open_application()
    for turn in range(10):
        turns.run_turn(1000 + 10 * turn, found=1000 if turn else 0)

    assert turns.run_turn(2000, found=0) == PRICE * 2000 + cost_without_prefill(2000)


def test_new_prompt_after_an_eviction_saves_at_most_the_price_already_paid() -> None:
    """The scheduler cannot tell a new prompt from a turn whose context was evicted."""
    turns = TurnRunner(core_with_replicas())
    turns.open_application()
    paid = turns.run_turn(1000) + turns.run_turn(1001, found=1000)
    forgiven = 0.0
    for turn in range(20):
        evict_all_contexts(turns.driver)
        paid += turns.run_turn(1002 + turn, found=0)
        forgiven = turns.driver.core.state.counters.forgiven

    computed = turns.tenant_usage()[1]
    assert 0 < forgiven <= computed / 2


def test_two_contexts_of_one_application_pay_for_evicting_each_other() -> None:
    """Each context is larger than half of the memory, so the engine evicts the other one."""
    turns = TurnRunner(core_with_replicas())
    turns.open_application()
    turns.run_turn(6000)
    turns.run_turn(6001, found=6000)
    for turn in range(6):
        prompt = (5000, 6002)[turn % 2] + turn

        assert turns.run_turn(prompt, found=0) == PRICE * prompt + cost_without_prefill(prompt)


def test_keeping_a_context_cached_with_calls_costs_more_than_a_cache_miss() -> None:
    tags = {}
    for pings in (True, False):
        turns = TurnRunner(core_with_replicas())
        turns.open_application()
        turns.run_turn(1000)
        turns.run_turn(1100, found=1000)
        for ping in range(5 * pings):
            turns.run_turn(1102 + 2 * ping, found=1100)
        if not pings:
            evict_all_contexts(turns.driver)
        turns.run_turn(1200, found=1100 * pings)
        tags[pings] = turns.driver.account().attained

    assert tags[True] > tags[False]


def test_shared_prefix_added_to_a_prompt_does_not_make_it_cheaper() -> None:
    """The common beginning is in the cache, but its memory is still charged."""
    plain, padded = TurnRunner(core_with_replicas()), TurnRunner(core_with_replicas())
    for turns in (plain, padded):
        turns.open_application()

    assert padded.run_turn(1500, found=500) > plain.run_turn(1000, found=0)


def _wait_with_prompts(driver: CoreDriver, **prompts: int) -> None:
    """Submit a first prompt of each application while no replica takes leases."""
    for name in driver.core.state.replicas:
        driver.pull(name, kv=KV, caches=True, stalled=True)
    for name, prompt in prompts.items():
        driver.open(name, 10_000, tenant=name)
        driver.submit(f"{name}1", name, prompt=prompt, output=1)


@pytest.mark.parametrize("fairness", ["application", "tenant"])
def test_shared_prefix_added_to_a_prompt_does_not_move_it_forward(fairness: str) -> None:
    """Tokens of the common beginning are charged although they are in the cache."""
    driver = core_with_replicas(fairness=fairness)
    turns = TurnRunner(driver)
    turns.open_application("other")
    turns.run_turn(4000, name="other")
    turns.run_turn(4001, found=4000, name="other")
    _wait_with_prompts(driver, padded=5000, plain=1000)

    order = [one.application_id for one in driver.core.ledger.queue.in_order()]
    assert order == ["plain", "padded"]
    driver.pull("r0", kv=KV, seats=1, caches=True)
    assert [driver.core.state.leases[name].request_id for name in driver.core.state.leases] == [
        "plain1"
    ]


def _submit_with_beginning(driver: CoreDriver, name: str, prompt: int) -> None:
    """Submit a prompt of which the first 4,000 tokens are common to all of these prompts."""
    driver.open(name, 10_000, tenant=name)
    prefixes = pack_prefixes([Prefix(4000, b"common!")])
    request = f"{name}1"
    driver.handle(
        ev.InferenceSubmitted(request, name, request, "i0", prompt, 10, 10, prefixes=prefixes)
    )


@pytest.mark.parametrize("is_first", [False, True])
def test_shared_prefix_that_makes_a_prompt_fit_does_not_let_it_overtake(*, is_first: bool) -> None:
    driver = core_with_replicas()
    _submit_with_beginning(driver, "other", 4010)
    if not is_first:
        driver.open("plain", 10_000, tenant="plain")
        driver.submit("plain1", "plain", prompt=7000, output=10)
        assert driver.waiting("plain") == ["plain1"]
    _submit_with_beginning(driver, "padded", 7500)

    assert driver.waiting("padded") == ([] if is_first else ["padded1"])


# --- preemptions


@pytest.mark.parametrize("fairness", ["application", "tenant"])
def test_recomputation_after_a_preemption_is_charged_only_to_the_tenant(
    fairness: str,
) -> None:
    """A preemption is no fault of the application."""
    driver = core_with_replicas(fairness=fairness)
    turns = TurnRunner(driver)
    turns.open_application(cost=10**7)
    turns.start_turn(1000, 0)
    before = driver.account().attained
    again = ev.LeaseProgress(turns.lease, 1000, 1, True, 0, recomputed_tokens=800)
    for _ in range(2):
        driver.handle(ev.ReplicaReported("r0", (again,), ()))

    assert driver.account().attained == before
    assert turns.tenant_usage() == (cost_without_prefill(1000), PRICE * 1800)
    assert driver.core.state.counters.forgiven == PRICE * 800
    ended = ev.LeaseFinished(
        turns.lease, 1000, 1, Outcome.FINISHED, cached_tokens=0, recomputed_tokens=2900
    )
    driver.handle(ev.ReplicaReported("r0", (), (ended,)))
    assert turns.tenant_usage() == (cost_without_prefill(1000), PRICE * 3900)
    assert driver.prefill().forgiven == 0


def test_recomputation_price_includes_attention_to_the_generated_answer() -> None:
    cost = PrefillCost(1, 0.5)
    driver = CoreDriver(SchedulerCore("justitia", timeouts=PATIENT, prefill_cost=cost))
    driver.pull("r0", kv=KV, caches=True)
    turns = TurnRunner(driver)
    turns.open_application()
    turns.start_turn(100, 0)
    again = ev.LeaseProgress(turns.lease, 100, 60, True, 0, recomputed_tokens=40)
    driver.handle(ev.ReplicaReported("r0", (again,), ()))

    assert driver.core.state.counters.forgiven == cost.of(40, 160)


def test_recomputation_reported_before_and_after_a_restart_is_charged_once() -> None:
    driver = core_with_replicas()
    turns = TurnRunner(driver)
    turns.open_application(cost=10**7)
    turns.start_turn(1000, 0)
    again = ev.LeaseProgress(turns.lease, 1000, 1, True, 0, recomputed_tokens=800)
    driver.handle(ev.ReplicaReported("r0", (again,), ()))
    before, counted = driver.account().attained, turns.tenant_usage()
    usage = driver.core.state.usage.take_changed(everything=True)
    old = driver.hand_over(new_core(prefix="2-"), ["r0"])
    driver.core.state.usage.restore(usage)
    driver.resubmit(old.state.inferences[turns.request], turns.lease)
    driver.pull("r0", [again], kv=KV, caches=True)

    assert driver.account().attained == before
    assert turns.tenant_usage() == counted
    turns.end_turn(1000, 0)
    assert driver.prefill().forgiven == 0


# Tests of restarts, cancelled calls and other units


def test_uncharged_prefill_reported_before_and_after_a_restart_counts_once() -> None:
    driver = core_with_replicas()
    turns = TurnRunner(driver)
    turns.open_application()
    turns.run_turn(1000)
    turns.run_turn(1100, found=1000)
    evict_all_contexts(driver)
    turns.start_turn(1200, 0)
    lease, before = turns.lease, driver.account().attained
    usage = driver.core.state.usage.take_changed(everything=True)
    counted = turns.tenant_usage()
    old = driver.hand_over(new_core(prefix="2-"), ["r0"])
    driver.core.state.usage.restore(usage)
    driver.resubmit(old.state.inferences[turns.request], lease)
    first = ev.LeaseProgress(lease, 1200, 1, running=True, cached_tokens=0)
    driver.pull("r0", [first], kv=KV, caches=True)

    assert driver.account().attained == before
    assert turns.tenant_usage() == counted
    turns.end_turn(1200, 0)
    assert driver.prefill().forgiven == 0


def test_cancelled_prompt_pays_for_the_computed_tokens() -> None:
    driver = core_with_replicas()
    driver.open("a")
    driver.submit("a1", prompt=1000)
    lease = driver.lease_of("a1")
    driver.handle(ev.InferenceCancelled("a1"))
    driver.last_word(lease, prompt=400)

    assert driver.account().attained == 400 + PRICE * 400


def test_expected_prefill_counts_as_work_in_flight_until_the_first_token() -> None:
    driver = core_with_replicas()
    turns = TurnRunner(driver)
    turns.open_application("a", cost=10**6)
    turns.open_application("b", cost=10**7)
    driver.submit("b1", "b", prompt=5000, output=1)
    lags = driver.core.lags
    driver.submit("a1", prompt=6000, output=1)  # does not fit beside the running inference
    lag = lags.lag(driver.application("a"))
    assert lag is not None
    assert lag.bound_kv_token_time == PRICE * 5000 + cost_without_prefill(5000)
    lease = driver.lease_of("b1")
    first = ev.LeaseProgress(lease, 5000, 1, running=True, cached_tokens=4000)
    driver.handle(ev.ReplicaReported("r0", (first,), ()))

    assert most_remaining_work(driver.inference("b1")) == 0


def test_work_ahead_in_the_queue_includes_expected_prefill() -> None:
    driver = core_with_replicas()
    turns = TurnRunner(driver)
    turns.open_application()
    turns.run_turn(1000)
    turns.run_turn(1100, found=1000)
    driver.pull("r0", kv=KV, caches=True, stalled=True)
    driver.submit("a/w", prompt=1200, output=1)

    assert driver.core.state.counters.waiting_kv_token_time == PRICE * 99 + cost_without_prefill(
        1200
    )


# --- charges


def test_prompt_charge_at_submission_is_corrected_at_the_first_token() -> None:
    turns = TurnRunner(core_with_replicas())
    turns.open_application(cost=2000)
    driver = turns.driver
    driver.pull("r0", kv=KV, caches=True, stalled=True)
    driver.submit("a1", prompt=1000)
    assert driver.account().charged == 2000 + PRICE * 1000
    driver.submit("a2", prompt=500)
    assert driver.account().charged == 2000 + PRICE * 1500
    driver.handle(ev.InferenceCancelled("a2"))
    assert driver.account().charged == 2000 + PRICE * 1000
    driver.pull("r0", kv=KV, caches=True)
    first = ev.LeaseProgress(driver.lease_of("a1"), 1000, 1, running=True, cached_tokens=900)
    driver.pull("r0", [first], kv=KV, caches=True)

    assert driver.account().charged == 2000 + PRICE * 100
    assert driver.account().attained == cost_without_prefill(1000) + PRICE * 100
    assert driver.account().settlements == 0


def test_long_prompt_waits_behind_a_short_prompt_of_equal_kv_token_time() -> None:
    """Both calls have the same KV token-time, but one computes ten times as many tokens."""
    turns = TurnRunner(core_with_replicas())
    for name in "ab":
        turns.open_application(name, cost=5050)
    driver = turns.driver
    driver.pull("r0", kv=KV, caches=True, stalled=True)
    driver.submit("a1", "a", prompt=5000, output=1)
    driver.submit("b1", "b", prompt=500, output=10)

    assert [one.application_id for one in driver.core.ledger.queue.in_order()] == ["b", "a"]


def test_restarted_scheduler_knows_the_cached_contexts() -> None:
    driver = core_with_replicas()
    turns = TurnRunner(driver)
    turns.open_application()
    turns.run_turn(1000)
    driver.hand_over(new_core(prefix="2-"), ["r0"])
    driver.pull("r0", kv=KV, caches=True, stalled=True)
    driver.submit("a/w", prompt=1100)

    assert driver.prefill().pending == PRICE * 99


def test_prompt_is_not_charged_again_after_a_restart() -> None:
    driver = core_with_replicas()
    driver.open("a", cost=1000)
    driver.submit("a1", prompt=1000)
    old = driver.hand_over(new_core(prefix="2-"), ["r0"])
    driver.resubmit(old.state.inferences["a1"], None)

    assert driver.account().charged == 1000 + PRICE * 1000


def test_arriving_application_is_charged_the_prefill_ratio_of_its_class() -> None:
    """The charge on arrival contains expected prefill; only an excess is charged later."""
    turns = TurnRunner(core_with_replicas())
    turns.open_application("a", cost=cost_without_prefill(1000, 10))
    turns.run_turn(1000, output=10)
    turns.driver.handle(ev.ApplicationClosed("a"))
    turns.open_application("b", cost=2 * cost_without_prefill(1000, 10))
    expected = 2 * PRICE * 1000
    assert turns.driver.account("b").charged == 2 * cost_without_prefill(1000, 10) + expected
    turns.run_turn(1000, name="b")
    assert turns.driver.account("b").charged == 2 * cost_without_prefill(1000, 10) + expected
    turns.run_turn(1500, name="b")

    assert turns.driver.account("b").charged == 2 * cost_without_prefill(1000, 10) + PRICE * 2500


def one_stage(prompt: int, output: int, inferences: float = 1) -> ExpectedStage:
    return ExpectedStage(
        inferences,
        inferences * (prompt + 2 * output),
        inferences * kv_token_time(prompt, output),
        output,
        0,
    )


def core_without_cache() -> CoreDriver:
    driver = CoreDriver(new_core())
    driver.pull("r0", kv=KV)
    return driver


def open_with_stages(
    driver: CoreDriver, name: str, *stages: ExpectedStage, factor: float = 1
) -> float:
    """Open an application with these stages, and return the prefill that it is charged."""
    cost = sum(stage.kv_token_time for stage in stages)
    driver.handle(
        ev.ApplicationArrived(
            name,
            "class",
            "tenant",
            1,
            cost,
            "i0",
            charge_kv_token_time=factor * cost,
            expected_stages=stages,
        )
    )
    return driver.account(name).charged - factor * cost


def test_first_application_of_a_class_is_charged_the_prefill_of_its_expected_stages() -> None:
    driver = core_without_cache()
    stages = one_stage(1000, 10), one_stage(1200, 20)

    assert open_with_stages(driver, "a", *stages) == PRICE * 2200
    assert open_with_stages(driver, "b", *stages, factor=2) == 2 * PRICE * 2200
    driver.submit("a1", prompt=1000)
    assert driver.account("a").charged == sum(s.kv_token_time for s in stages) + PRICE * 2200


def test_application_larger_than_its_stages_has_more_prefill() -> None:
    """The stages are means of the class; a model may predict twice their cost."""
    driver = core_without_cache()
    stage = one_stage(1000, 10)
    driver.handle(
        ev.ApplicationArrived(
            "a", "class", "tenant", 1, 2 * stage.kv_token_time, "i0", expected_stages=(stage,)
        )
    )

    assert driver.account().charged == 2 * (stage.kv_token_time + PRICE * 1000)


def test_stages_tell_no_prefill_if_replicas_cache_prompts() -> None:
    """How many tokens are cached depends on the load, which is learned from ended applications."""
    assert open_with_stages(core_with_replicas(), "a", one_stage(1000, 10)) == 0
    assert open_with_stages(CoreDriver(new_core()), "a", one_stage(1000, 10)) == 0  # no replica yet


def test_prefill_of_stages_is_that_of_their_known_prompts() -> None:
    price = PrefillCost(2, 0.5)
    stages = one_stage(1000, 10), ExpectedStage(0, 0, 0, 0, 0), one_stage(400, 5, 3)

    assert prefill_of_stages(price, stages) == price.of(1000, 1000) + 3 * price.of(400, 400)


def test_learned_ratio_replaces_the_prefill_of_stages_as_applications_end() -> None:
    ratios = PrefillRatios()
    assert ratios.expected("class", 100, of_stages=500) == 500
    ratios.observe("class", 10, 5)
    assert ratios.expected("class", 100, of_stages=500) == round((50 + 8 * 500) / 9)
    for _ in range(71):
        ratios.observe("class", 10, 5)
    assert ratios.expected("class", 100, of_stages=500) == (72 * 50 + 8 * 500) / 80
    assert ratios.expected("class", 100) == 50


def test_prefill_of_stages_counts_before_the_ratio_of_surplus_classes() -> None:
    ratios = PrefillRatios()
    ratios.observe("other", 10, 5)

    assert ratios.expected("new", 100, of_stages=500) == 500
    assert ratios.expected("new", 100) == 50


def test_prefill_of_expected_stages_stays_charged_over_a_restart() -> None:
    driver = core_without_cache()
    prefill = open_with_stages(driver, "a", one_stage(1000, 10))
    driver.hand_over(new_core(prefix="2-"), ["r0"])

    assert prefill == PRICE * 1000
    assert driver.account("a").charged == cost_without_prefill(1000, 10) + prefill
    driver.submit("a1", "a", prompt=500)
    assert driver.account("a").charged == cost_without_prefill(1000, 10) + prefill


def test_prefill_ratios_survive_a_scheduler_restart() -> None:
    driver = core_with_replicas()
    turns = TurnRunner(driver)
    turns.open_application("a", cost=cost_without_prefill(1000))
    turns.run_turn(1000)
    driver.handle(ev.ApplicationClosed("a"))
    driver.hand_over(new_core(prefix="2-"), ["r0"])
    driver.open("b", cost_without_prefill(1000))

    assert driver.account("b").charged == cost_without_prefill(1000) + PRICE * 1000


@pytest.mark.parametrize("record", [[], {"class": [1, 2]}, {"class": [1, -2, 3]}])
def test_damaged_prefill_ratios_are_refused(record: object) -> None:
    with pytest.raises(ValueError, match="prefill_ratios"):
        PrefillRatios().restore(record)


def test_surplus_classes_share_one_prefill_ratio() -> None:
    ratios = PrefillRatios()
    for number in range(400):
        ratios.observe(f"class {number}", 10, 20)
    assert ratios.expected("new", 100) == 200
    assert PrefillRatios().expected("new", 100) == 0
    for _ in range(1000):
        ratios.observe("class 1", 10, 40)

    assert ratios.expected("class 1", 100) == pytest.approx(400, abs=3)


def test_prompts_computed_in_one_report_move_no_overdue_tag() -> None:
    """Prompt by prompt, the charge would fall by the second prompt, and rise again from V on."""
    driver = core_with_replicas()
    for name, cost in (("a", 2 * kv_token_time(10, 10)), ("b", 100_000)):
        driver.open(name, cost)
    for request in ("a0", "a1", "b0"):
        driver.submit(request, request[0])
    driver.core.ledger.fair_share.deliver([("b", 5000)])
    tag = 2 * (kv_token_time(10, 10) + 10 * PRICE)
    assert tag == driver.core.tag("a") < driver.core.ledger.fair_share.clock.virtual_time

    both = [
        ev.LeaseProgress(driver.lease_of(request), 10, 1, running=True, cached_tokens=0)
        for request in ("a0", "a1")
    ]
    driver.handle(ev.ReplicaReported("r0", tuple(both), ()))

    assert tag == driver.core.tag("a")
    assert tag == driver.account("a").charged
