"""Prefill as a part of the cost, and who pays for a prompt that was computed before."""

import pytest

from justitia_ray.core import events as ev
from justitia_ray.core.entities import Outcome
from justitia_ray.core.lags import most_left
from justitia_ray.core.prefill_ratios import PrefillRatios
from justitia_ray.core.scheduler import SchedulerCore
from justitia_ray.cost import PrefillCost, kv_token_time
from tests.core_driver import PATIENT, CoreDriver

KV = 10_000
PRICE = 100


def a_core(replicas: int = 1, *, fairness: str = "application", prefix: str = "1-") -> CoreDriver:
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


class Turns:
    """Turns of applications on a core, one after the other, with what the engine finds of each."""

    def __init__(self, driver: CoreDriver) -> None:
        self.driver = driver
        self._count = 0

    def open(self, name: str = "a", tenant: str = "tenant", cost: float = 2) -> None:
        self.driver.open(name, cost, tenant=tenant)

    def run(self, prompt: int, found: int = 0, *, name: str = "a", output: int = 1) -> float:
        """Run a turn; return by how much the service of its application grew."""
        before = self.driver.account(name).attained
        self.start(prompt, found, name=name)
        self.end(prompt, found, output=output)
        return self.driver.account(name).attained - before

    def start(self, prompt: int, found: int, *, name: str = "a") -> str:
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

    def end(self, prompt: int, found: int, *, output: int = 1) -> None:
        ended = ev.LeaseFinished(self.lease, prompt, output, Outcome.FINISHED, cached_tokens=found)
        reported = ev.ReplicaReported(self.replica, (), (ended,), asks=True, withdraws=True)
        self.driver.handle(reported)

    def usage(self, tenant: str = "tenant") -> tuple[float, float]:
        """Return a tenant's service without prefill, and its prefill, as its usage has them."""
        totals = self.driver.core.state.usage.of(tenant, self.driver.now)
        return totals.kv_token_time, totals.prefill_token_time


def lose_contexts(driver: CoreDriver) -> None:
    """Let others' work displace all contexts, as the core's table of them has it."""
    for replica in driver.core.state.replicas.values():
        replica.contexts.shrink(0)


def h(prompt: int, output: int = 1) -> float:
    return kv_token_time(prompt, output)


def test_computed_tokens_are_paid_with_the_first_token_and_cached_ones_are_not() -> None:
    turns = Turns(a_core())
    turns.open()

    assert turns.run(1000) == PRICE * 1000 + h(1000)
    assert turns.run(1200, found=1000) == PRICE * 200 + h(1200)
    assert turns.usage() == (h(1000) + h(1200), PRICE * 1200)


def test_attention_makes_late_tokens_dearer() -> None:
    cost = PrefillCost(2, 0.5)

    assert cost.of(100, 100) == 200 + 2500
    assert cost.of(10, 100) == 20 + 475
    assert cost.of(100, 100) == cost.of(90, 90) + cost.of(10, 100)


def test_price_of_a_token_is_the_service_that_its_time_would_have_given() -> None:
    """A step takes 20 ms at half the memory; a token 0.1 ms, in which M/200 would be served."""
    cost = PrefillCost.from_step_times(10_000, 0.01, 2e-6, 1e-4, 1e-9)

    assert cost.per_token == pytest.approx(50)
    assert cost.per_pair == pytest.approx(5e-4)
    with pytest.raises(ValueError, match="a step takes 0"):
        PrefillCost.from_step_times(10_000, 0, 0, 1e-4)


def test_turn_that_was_moved_by_the_scheduler_pays_what_it_would_have_paid() -> None:
    """Its context lies on a replica that is stalled."""
    driver = a_core(2)
    turns = Turns(driver)
    turns.open()
    turns.run(1000)
    turns.run(1100, found=1000)
    other = "r1" if turns.replica == "r0" else "r0"
    driver.pull(turns.replica, kv=KV, caches=True, stalled=True)
    driver.pull(other, kv=KV, caches=True)

    assert turns.run(1200, found=0) == PRICE * 100 + h(1200)
    assert turns.replica == other


def test_victim_of_an_eviction_keeps_its_place_and_its_tenant_pays() -> None:
    turns = Turns(a_core())
    turns.open()
    turns.run(1000)
    turns.run(1100, found=1000)
    before = turns.usage()[1]
    lose_contexts(turns.driver)

    assert turns.run(1200, found=0) == PRICE * 100 + h(1200)
    assert turns.usage()[1] - before == PRICE * 1200


def test_engine_that_finds_more_than_expected_makes_the_turn_cheaper() -> None:
    turns = Turns(a_core())
    turns.open()

    assert turns.run(1000, found=900) == PRICE * 100 + h(1000)


@pytest.mark.parametrize("fairness", ["application", "tenant"])
def test_applications_and_tenants_are_owed_what_was_charged_after_misses(fairness: str) -> None:
    """`CoreDriver` checks after each event that GPS owes all that was charged, at every level."""
    turns = Turns(a_core(fairness=fairness))
    for name, tenant in (("a", "one/x"), ("b", "one/y"), ("c", "two")):
        turns.open(name, tenant, cost=10**6)
        turns.run(1000, name=name)
        turns.run(1100, found=1000, name=name)
    for name in "abc":
        lose_contexts(turns.driver)
        turns.run(1200, found=0, name=name)
        turns.driver.handle(ev.ApplicationClosed(name))

    assert not turns.driver.core.state.applications


def test_miss_delays_the_tenant_that_caused_it_and_no_other() -> None:
    """A tenant's keys rise by its misses; those of another tenant stay."""
    keys = {}
    for misses in (False, True):
        turns = Turns(a_core(fairness="tenant"))
        for name, tenant in (("a", "one"), ("b", "one"), ("c", "two")):
            turns.open(name, tenant, cost=10**7)
        turns.run(1000)
        turns.run(1100, found=1000)
        share = turns.driver.core.ledger.fair_share
        turns.driver.submit("c/w", "c", prompt=9000, output=1)
        turns.driver.submit("b/w", "b", prompt=9000, output=1)
        if misses:
            share.miss("a", exact_miss := 10**6)
        keys[misses] = {name: share.tag(name) for name in "abc"}

    assert keys[True]["c"] == keys[False]["c"]
    assert keys[True]["b"] - keys[False]["b"] == pytest.approx(exact_miss)


def _tenants_are_owed_what_was_charged(driver: CoreDriver) -> bool:
    share = driver.core.ledger.fair_share
    live = [account for account in share.accounts.values() if not account.withdrawn]
    return bool(
        sum(account.charged - account.attained for account in live) == share.clock.backlog()
    )


def test_miss_that_only_moves_virtual_time_breaks_the_invariant() -> None:
    """Everybody would pay: GPS would owe less than the replicas have to do."""
    driver = a_core(fairness="tenant")
    driver.open("a", 10**6)
    driver.submit("a1", prompt=1000)
    share = driver.core.ledger.fair_share
    share.miss("a", 1000)
    assert _tenants_are_owed_what_was_charged(driver)
    share.clock.serve(1000)
    assert not _tenants_are_owed_what_was_charged(driver)


# --- attacks


def test_fresh_salt_for_each_call_pays_for_all_tokens() -> None:
    turns = Turns(a_core())
    turns.open()

    assert [PRICE * 1000 + h(1000)] * 6 == [turns.run(1000, found=0) for _ in range(6)]


def test_new_long_prompt_after_a_past_full_of_reuse_pays_for_all_tokens() -> None:
    turns = Turns(a_core())
    turns.open()
    for turn in range(10):
        turns.run(1000 + 10 * turn, found=1000 if turn else 0)

    assert turns.run(2000, found=0) == PRICE * 2000 + h(2000)


def test_new_prompt_in_place_of_one_that_others_evicted_gains_once_what_was_paid_before() -> None:
    """Nobody can tell it from a victim: it may be forgiven each token that it has paid for once."""
    turns = Turns(a_core())
    turns.open()
    paid = turns.run(1000) + turns.run(1001, found=1000)
    forgiven = 0.0
    for turn in range(20):
        lose_contexts(turns.driver)
        paid += turns.run(1002 + turn, found=0)
        forgiven = turns.driver.core.state.counters.forgiven

    computed = turns.usage()[1]
    assert 0 < forgiven <= computed / 2


def test_two_contexts_in_turn_pay_for_each_other() -> None:
    """Each is larger than half of the memory, so that the engine evicts the other one."""
    turns = Turns(a_core())
    turns.open()
    turns.run(6000)
    turns.run(6001, found=6000)
    for turn in range(6):
        prompt = (5000, 6002)[turn % 2] + turn

        assert turns.run(prompt, found=0) == PRICE * prompt + h(prompt)


def test_pings_that_keep_a_context_warm_cost_more_than_the_miss_that_they_avoid() -> None:
    """With pings it computes nothing again; without, what others evict costs its tag nothing."""
    tags = {}
    for pings in (True, False):
        turns = Turns(a_core())
        turns.open()
        turns.run(1000)
        turns.run(1100, found=1000)
        for ping in range(5 * pings):
            turns.run(1102 + 2 * ping, found=1100)
        if not pings:
            lose_contexts(turns.driver)
        turns.run(1200, found=1100 * pings)
        tags[pings] = turns.driver.account().attained

    assert tags[True] > tags[False]


def test_padded_beginning_makes_no_prompt_cheaper_than_without_it() -> None:
    """A beginning that others have computed is found, and its memory is paid for."""
    plain, padded = Turns(a_core()), Turns(a_core())
    for turns in (plain, padded):
        turns.open()

    assert padded.run(1500, found=500) > plain.run(1000, found=0)


# --- restarts, cuts and other units


def test_forgiven_prefill_is_counted_once_over_a_restart() -> None:
    driver = a_core()
    turns = Turns(driver)
    turns.open()
    turns.run(1000)
    turns.run(1100, found=1000)
    lose_contexts(driver)
    turns.start(1200, 0)
    lease, before = turns.lease, driver.account().attained
    usage = driver.core.state.usage.take_changed(everything=True)
    counted = turns.usage()
    old = driver.hand_over(new_core(prefix="2-"), ["r0"])
    driver.core.state.usage.restore(usage)
    driver.resubmit(old.state.inferences[turns.request], lease)
    first = ev.LeaseProgress(lease, 1200, 1, running=True, cached_tokens=0)
    driver.pull("r0", [first], kv=KV, caches=True)

    assert driver.account().attained == before
    assert turns.usage() == counted
    turns.end(1200, 0)
    assert driver.application().unfinished_forgiven == 0


def test_prompt_that_is_cut_short_pays_for_what_was_read() -> None:
    driver = a_core()
    driver.open("a")
    driver.submit("a1", prompt=1000)
    lease = driver.lease_of("a1")
    driver.handle(ev.InferenceCancelled("a1"))
    driver.last_word(lease, prompt=400)

    assert driver.account().attained == 400 + PRICE * 400


def test_prompt_that_may_be_computed_is_work_in_flight_until_its_first_token() -> None:
    driver = a_core()
    turns = Turns(driver)
    turns.open("a", cost=10**6)
    turns.open("b", cost=10**7)
    driver.submit("b1", "b", prompt=5000, output=1)
    lags = driver.core.lags
    driver.submit("a1", prompt=6000, output=1)  # it does not fit beside the other
    lag = lags.lag(driver.application("a"))
    assert lag is not None
    assert lag.bound_kv_token_time == PRICE * 5000 + h(5000)
    lease = driver.lease_of("b1")
    first = ev.LeaseProgress(lease, 5000, 1, running=True, cached_tokens=4000)
    driver.handle(ev.ReplicaReported("r0", (first,), ()))

    assert most_left(driver.inference("b1")) == 0


def test_sum_over_the_queue_contains_the_expected_prefill() -> None:
    driver = a_core()
    turns = Turns(driver)
    turns.open()
    turns.run(1000)
    turns.run(1100, found=1000)
    driver.pull("r0", kv=KV, caches=True, stalled=True)
    driver.submit("a/w", prompt=1200, output=1)

    assert driver.core.state.counters.waiting_kv_token_time == PRICE * 99 + h(1200)


# --- charges


def test_submission_is_charged_for_its_prompt_and_the_difference_when_it_is_computed() -> None:
    turns = Turns(a_core())
    turns.open(cost=2000)
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
    assert driver.account().attained == h(1000) + PRICE * 100
    assert driver.account().settlements == 0


def test_long_new_prompt_waits_for_a_short_one_of_equal_memory_over_time() -> None:
    """Both hold the same memory over time; one computes ten times as many tokens."""
    turns = Turns(a_core())
    for name in "ab":
        turns.open(name, cost=5050)
    driver = turns.driver
    driver.pull("r0", kv=KV, caches=True, stalled=True)
    driver.submit("a1", "a", prompt=5000, output=1)
    driver.submit("b1", "b", prompt=500, output=10)

    assert [one.application_id for one in driver.core.ledger.queue.in_order()] == ["b", "a"]


def test_contexts_are_known_after_a_restart() -> None:
    driver = a_core()
    turns = Turns(driver)
    turns.open()
    turns.run(1000)
    driver.hand_over(new_core(prefix="2-"), ["r0"])
    driver.pull("r0", kv=KV, caches=True, stalled=True)
    driver.submit("a/w", prompt=1100)

    assert driver.application().pending_prefill == PRICE * 99


def test_charge_for_a_prompt_is_not_made_again_after_a_restart() -> None:
    driver = a_core()
    driver.open("a", cost=1000)
    driver.submit("a1", prompt=1000)
    old = driver.hand_over(new_core(prefix="2-"), ["r0"])
    driver.resubmit(old.state.inferences["a1"], None)

    assert driver.account().charged == 1000 + PRICE * 1000


def test_arrival_is_charged_for_prefill_by_the_ratio_of_its_class() -> None:
    """Submissions draw on that charge, and only what exceeds it is charged again."""
    turns = Turns(a_core())
    turns.open("a", cost=h(1000, 10))
    turns.run(1000, output=10)
    turns.driver.handle(ev.ApplicationClosed("a"))
    turns.open("b", cost=2 * h(1000, 10))
    expected = 2 * PRICE * 1000
    assert turns.driver.account("b").charged == 2 * h(1000, 10) + expected
    turns.run(1000, name="b")
    assert turns.driver.account("b").charged == 2 * h(1000, 10) + expected
    turns.run(1500, name="b")

    assert turns.driver.account("b").charged == 2 * h(1000, 10) + PRICE * 2500


def test_ratios_outlive_the_scheduler() -> None:
    driver = a_core()
    turns = Turns(driver)
    turns.open("a", cost=h(1000))
    turns.run(1000)
    driver.handle(ev.ApplicationClosed("a"))
    driver.hand_over(new_core(prefix="2-"), ["r0"])
    driver.open("b", h(1000))

    assert driver.account("b").charged == h(1000) + PRICE * 1000


@pytest.mark.parametrize("record", [[], {"class": [1, 2]}, {"class": [1, -2, 3]}])
def test_damaged_ratios_are_refused(record: object) -> None:
    with pytest.raises(ValueError, match="prefill_ratios"):
        PrefillRatios().restore(record)


def test_ratios_of_too_many_classes_share_an_entry_and_forget_slowly() -> None:
    ratios = PrefillRatios()
    for number in range(400):
        ratios.observe(f"class {number}", 10, 20)
    assert ratios.expected("new", 100) == 200
    assert PrefillRatios().expected("new", 100) == 0
    for _ in range(1000):
        ratios.observe("class 1", 10, 40)

    assert ratios.expected("class 1", 100) == pytest.approx(400, abs=3)
