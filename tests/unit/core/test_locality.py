"""Choice of the replica with the least delay, given the contexts in its prefix cache."""

from justitia_ray.core import events as ev
from justitia_ray.core.contexts import Context
from justitia_ray.core.entities import (
    Application,
    Inference,
    KnownReplica,
    ReplicaCapacity,
)
from justitia_ray.core.footprints import Footprint
from justitia_ray.core.locality import rank
from justitia_ray.core.prefixes import Prefix
from justitia_ray.core.scheduler import SchedulerCore
from tests.core_driver import PATIENT, CoreDriver

KV = 10_000
CACHING = ReplicaCapacity(KV, caches_prefixes=True)


def create_replica(
    name: str, *, runs: int = 0, computes: int = 0, context: int = 0, caches: bool = True
) -> KnownReplica:
    """Return a replica with this many leases and pending prompt tokens, and a context of `a`."""
    known = KnownReplica(name, ReplicaCapacity(KV, caches_prefixes=caches), 0.0)
    for number in range(runs):
        known.leases[f"{name}/{number}"] = Footprint(10, 1, 10, "others")
    known.uncomputed_tokens = computes
    if context:
        known.contexts.put("a", Context(context, context), KV)
    return known


def create_application(*served: str) -> Application:
    opened = Application("a", "class", "tenant", 1.0, 100, "i0", 0.0, 0)
    opened.replicas = dict.fromkeys(served)
    return opened


def create_inference(prompt: int, *prefixes: Prefix) -> Inference:
    return Inference("a1", "a", "a1", "i0", prompt, 10, 10, 1, 0.0, 0, prefixes=prefixes)


def best_replica(prompt: int, *replicas: KnownReplica, served: tuple[str, ...] = ()) -> str:
    return rank([*replicas], create_application(*served), create_inference(prompt))[0].replica_id


def test_turn_goes_to_a_busier_replica_that_has_its_context() -> None:
    """Computing 100 new tokens beside four inferences delays less than 1,100 beside one."""
    assert "r0" == best_replica(
        1100, create_replica("r0", runs=3, context=1000), create_replica("r1")
    )


def test_turn_leaves_its_context_if_its_prefill_would_delay_many_inferences() -> None:
    """Computing 100 new tokens beside twelve inferences delays more than 1,100 beside one."""
    assert "r1" == best_replica(
        1100, create_replica("r0", runs=11, context=1000), create_replica("r1")
    )


def test_turn_does_not_wait_behind_a_long_prefill() -> None:
    assert "r1" == best_replica(
        1100, create_replica("r0", computes=2000, context=1000), create_replica("r1")
    )


def test_new_prompt_goes_to_the_replica_with_fewest_leases() -> None:
    assert "r1" == best_replica(500, create_replica("r0", runs=2), create_replica("r1", runs=1))


def test_new_prompt_goes_where_it_evicts_no_context() -> None:
    full, empty = create_replica("r0"), create_replica("r1", computes=1000)
    full.contexts.put("b", Context(9000, 9000), KV)

    assert "r1" == best_replica(2500, full, empty)
    assert "r0" == best_replica(900, full, empty)  # replica r0 has room beside the idle context


def test_long_answer_goes_to_the_replica_with_shorter_running_contexts() -> None:
    shared = create_replica("r0", runs=4, context=9)
    long_answer = Inference("a1", "a", "a1", "i0", 10, 1000, 1000, 1, 0.0, 0)

    assert (
        "r1"
        == rank([shared, create_replica("r1")], create_application(), long_answer)[0].replica_id
    )
    assert "r0" == best_replica(10, shared, create_replica("r1"))


def test_contexts_of_ended_applications_are_evicted_without_cost() -> None:
    full, empty = create_replica("r0"), create_replica("r1", computes=1000)
    full.contexts.put("b", Context(9000, 9000), KV)
    full.contexts.end("b")

    assert "r0" == best_replica(2500, full, empty)


def test_prompts_without_a_common_beginning_are_placed_independently() -> None:
    """The calls of a map-reduce have equal lengths, but none continues another's context."""
    independent = create_application("r0")
    independent.reuse = -2
    ranked = rank(
        [create_replica("r0", runs=1, context=1000), create_replica("r1")],
        independent,
        create_inference(1000),
    )

    assert "r1" == ranked[0].replica_id


def test_equal_expected_delays_prefer_the_last_replica_of_the_application() -> None:
    assert "r1" == best_replica(
        500, create_replica("r0"), create_replica("r1"), served=("r0", "r1")
    )
    assert "r0" == best_replica(500, create_replica("r1", runs=1), create_replica("r0", runs=1))


def test_prompt_finds_a_context_in_use_by_its_prefix() -> None:
    """A sub-agent continues from a context that another running call has read."""
    named = Prefix(2000, b"context")
    busy, idle = create_replica("r0"), create_replica("r1")
    busy.leases.join("l", (named,))
    busy.leases["l"] = Footprint(10, 1, 2010, "a")

    ranked = rank([idle, busy], create_application(), create_inference(2020, named))
    assert ["r0", "r1"] == [one.replica_id for one in ranked]


def test_replicas_without_a_cache_are_ranked_by_earlier_service_and_free_memory() -> None:
    one, other = create_replica("r0", runs=3, caches=False), create_replica("r1", caches=False)

    assert "r0" == best_replica(1000, one, other, served=("r0",))
    assert "r1" == best_replica(1000, one, other)


def core_with_replica(*, caches: bool = True) -> CoreDriver:
    driver = CoreDriver(SchedulerCore("fcfs", timeouts=PATIENT))
    driver.pull("r0", kv=KV, caches=caches)
    driver.open("a")
    return driver


def idle_contexts(driver: CoreDriver, name: str = "r0") -> dict[str, int]:
    known = driver.core.state.replicas[name].contexts
    return {one: context.tokens for one, context in known.idle()}


def report_first_token(driver: CoreDriver, request: str, *, found: int) -> None:
    progress = ev.LeaseProgress(driver.lease_of(request), 0, 1, running=True, cached_tokens=found)
    driver.handle(ev.ReplicaReported("r0", (progress,), (), asks=True))


def test_prefill_is_pending_until_the_first_token_and_leaves_a_context() -> None:
    driver = core_with_replica()
    driver.submit("a1", prompt=1000)
    known = driver.core.state.replicas["r0"]
    assert 1000 == known.uncomputed_tokens
    report_first_token(driver, "a1", found=0)
    assert 0 == known.uncomputed_tokens
    driver.end("a1", 1000)
    assert {"a": 1010} == idle_contexts(driver)

    driver.submit("a2", prompt=1200)
    assert 190 == known.uncomputed_tokens
    assert {} == idle_contexts(driver)
    driver.end("a2", 1200)
    assert {"a": 1210} == idle_contexts(driver)


def test_inference_cancelled_before_its_first_token_keeps_the_context() -> None:
    driver = core_with_replica()
    driver.submit("a1", prompt=1000)
    driver.end("a1", 1000)
    driver.submit("a2", prompt=1200)
    driver.handle(ev.InferenceCancelled("a2"))

    assert {"a": 1010} == idle_contexts(driver)
    assert 0 == driver.core.state.replicas["r0"].uncomputed_tokens


def core_with_three_contexts() -> CoreDriver:
    """Return a core with idle contexts of three applications."""
    driver = core_with_replica()
    for name in ("a", "b", "c"):
        if name != "a":
            driver.open(name)
        driver.submit(f"{name}1", name, prompt=1000)
        driver.end(f"{name}1", 1000)
    return driver


def test_cache_miss_of_one_application_does_not_evict_contexts_of_others() -> None:
    """A caller must not be able to evict other callers' records."""
    driver = core_with_three_contexts()
    driver.submit("b2", "b", prompt=1100)
    report_first_token(driver, "b2", found=16)

    assert {"a": 1010, "c": 1010} == idle_contexts(driver)


def test_eviction_of_an_expected_context_also_evicts_older_contexts() -> None:
    driver = core_with_three_contexts()
    driver.submit("b2", "b", prompt=1100)
    report_first_token(driver, "b2", found=1000)
    driver.end("b2", 1100)
    driver.submit("c2", "c", prompt=1100)
    driver.end("c2", 1100)
    driver.submit("b3", "b", prompt=1200)
    report_first_token(driver, "b3", found=16)

    assert {"c": 1110} == idle_contexts(driver)


def test_call_that_continues_no_context_creates_a_new_context() -> None:
    driver = core_with_replica()
    driver.submit("a1", prompt=5000)
    driver.end("a1", 5000)
    driver.submit("title", prompt=300)
    assert 300 == driver.core.state.replicas["r0"].uncomputed_tokens
    report_first_token(driver, "title", found=0)
    driver.end("title", 300)

    contexts = driver.core.state.replicas["r0"].contexts
    assert [5010, 310] == [context.tokens for _, context in contexts.idle()]


def test_turn_of_a_sub_agent_goes_to_its_context() -> None:
    agent, other = create_replica("r0", runs=1, context=5000), create_replica("r1")
    agent.contexts.put("a", Context(400, 410), KV)
    other.contexts.put("a", Context(200, 210), KV)

    assert "r0" == best_replica(500, other, agent)
    assert "r1" == best_replica(300, other, agent)
    assert "r0" == best_replica(5100, other, agent)


def core_with_two_contexts() -> CoreDriver:
    """Return a core with two idle contexts of one application: 4,010 and 310 tokens."""
    driver = core_with_replica()
    for name, prompt in (("a1", 4000), ("sub", 300)):
        driver.submit(name, prompt=prompt)
        report_first_token(driver, name, found=0)
        driver.end(name, prompt)
    return driver


def context_lengths(driver: CoreDriver) -> list[int]:
    contexts = driver.core.state.replicas["r0"].contexts
    return sorted(context.tokens for context in contexts.of("a"))


def test_cache_miss_of_a_turn_keeps_the_other_contexts_of_its_application() -> None:
    """The context of a sub-agent is not a prefix of the agent's prompt."""
    driver = core_with_two_contexts()
    driver.submit("a2", prompt=4100)
    report_first_token(driver, "a2", found=16)
    driver.end("a2", 4100)

    assert context_lengths(driver) == [310, 4110]


def test_turn_continues_the_context_that_the_engine_reports_as_cached() -> None:
    driver = core_with_two_contexts()
    driver.submit("sub2", prompt=4200)
    report_first_token(driver, "sub2", found=310)
    driver.end("sub2", 4200)

    assert context_lengths(driver) == [4010, 4210]
    assert driver.core.state.replicas["r0"].contexts.tokens == 4010 + 4210


def test_lease_whose_prompt_never_arrived_leaves_no_context() -> None:
    """Output generated by an earlier attempt on another replica is not in this cache."""
    driver = core_with_replica()
    driver.submit("a1", prompt=1000, output=50)
    report_first_token(driver, "a1", found=0)
    driver.pull("r1", kv=KV, caches=True)
    driver.handle(ev.ReplicaLost("r0"))
    assert "r1" == driver.core.state.leases[driver.lease_of("a1")].replica_id
    driver.handle(ev.InferenceCancelled("a1"))

    assert {} == idle_contexts(driver, "r1")


def test_replica_with_disabled_cache_has_no_contexts() -> None:
    driver = core_with_three_contexts()
    driver.pull("r0", kv=KV)

    assert {} == idle_contexts(driver)


def test_contexts_of_ended_applications_do_not_count_as_live_contexts() -> None:
    driver = core_with_three_contexts()
    driver.handle(ev.ApplicationClosed("a"))
    known = driver.core.state.replicas["r0"].contexts

    assert (3030, 2020) == (known.tokens, known.live_tokens)


def test_context_of_a_stopped_inference_is_marked_as_ended() -> None:
    driver = core_with_replica()
    driver.submit("a1", prompt=1000)
    report_first_token(driver, "a1", found=0)
    last_word = ev.LeaseFinished(driver.lease_of("a1"), 1000, 1, None)
    driver.handle(ev.ApplicationCancelled("a"))
    driver.handle(ev.ReplicaReported("r0", (), (last_word,)))
    known = driver.core.state.replicas["r0"].contexts

    assert "a" not in driver.core.state.applications
    assert (1001, 0) == (known.tokens, known.live_tokens)


def test_replica_without_a_cache_stores_no_context() -> None:
    driver = core_with_replica(caches=False)
    driver.submit("a1", prompt=1000)
    driver.end("a1", 1000)

    assert {} == idle_contexts(driver)


def test_restarted_scheduler_expects_contexts_at_the_last_replica_of_each_application() -> None:
    driver = core_with_replica()
    driver.submit("a1", prompt=1000)
    driver.end("a1", 1000)
    driver.hand_over(SchedulerCore("fcfs", timeouts=PATIENT))
    driver.pull("r1", kv=KV, caches=True)
    driver.pull("r0", kv=KV, caches=True)

    assert {} == idle_contexts(driver, "r1")
    assert {"a": 1000} == idle_contexts(driver, "r0")
