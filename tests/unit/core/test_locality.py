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


def replica(
    name: str, *, runs: int = 0, computes: int = 0, context: int = 0, caches: bool = True
) -> KnownReplica:
    """Return a replica with `runs` leases, `computes` pending prompt tokens, a context of `a`."""
    known = KnownReplica(name, ReplicaCapacity(KV, caches_prefixes=caches), 0.0)
    for number in range(runs):
        known.leases[f"{name}/{number}"] = Footprint(10, 1, 10, "others")
    known.uncomputed_tokens = computes
    if context:
        known.contexts.put("a", Context(context, context), KV)
    return known


def application(*served: str) -> Application:
    opened = Application("a", "class", "tenant", 1.0, 100, "i0", 0.0, 0)
    opened.replicas = dict.fromkeys(served)
    return opened


def inference(prompt: int, *prefixes: Prefix) -> Inference:
    return Inference("a1", "a", "a1", "i0", prompt, 10, 10, 1, 0.0, 0, prefixes=prefixes)


def best(prompt: int, *replicas: KnownReplica, served: tuple[str, ...] = ()) -> str:
    return rank([*replicas], application(*served), inference(prompt))[0].replica_id


def test_turn_goes_where_its_context_lies_though_more_runs_there() -> None:
    """100 new tokens delay four, 1,100 tokens one."""
    assert "r0" == best(1100, replica("r0", runs=3, context=1000), replica("r1"))


def test_turn_leaves_its_context_if_it_would_delay_too_many() -> None:
    """100 new tokens delay twelve, 1,100 one."""
    assert "r1" == best(1100, replica("r0", runs=11, context=1000), replica("r1"))


def test_turn_waits_for_no_long_prompt_that_is_being_computed() -> None:
    assert "r1" == best(1100, replica("r0", computes=2000, context=1000), replica("r1"))


def test_new_prompt_goes_to_the_replica_with_fewest_leases() -> None:
    assert "r1" == best(500, replica("r0", runs=2), replica("r1", runs=1))


def test_new_prompt_goes_where_it_displaces_no_context() -> None:
    """9,000 idle tokens of another application are on one, of which 1,510 would be evicted."""
    full, empty = replica("r0"), replica("r1", computes=1000)
    full.contexts.put("b", Context(9000, 9000), KV)

    assert "r1" == best(2500, full, empty)
    assert "r0" == best(900, full, empty)  # r0 has room beside the idle context


def test_long_answer_goes_where_few_contexts_are_read_with_it() -> None:
    """Ten prompt tokens are soon computed; a thousand iterations beside others are not."""
    shared = replica("r0", runs=4, context=9)
    long_answer = Inference("a1", "a", "a1", "i0", 10, 1000, 1000, 1, 0.0, 0)

    assert "r1" == rank([shared, replica("r1")], application(), long_answer)[0].replica_id
    assert "r0" == best(10, shared, replica("r1"))


def test_contexts_of_ended_applications_are_displaced_without_cost() -> None:
    full, empty = replica("r0"), replica("r1", computes=1000)
    full.contexts.put("b", Context(9000, 9000), KV)
    full.contexts.end("b")

    assert "r0" == best(2500, full, empty)


def test_prompts_that_had_nothing_in_common_are_not_drawn_to_each_other() -> None:
    """The calls of a map-reduce are equally long, and no context is found."""
    independent = application("r0")
    independent.reuse = -2
    ranked = rank(
        [replica("r0", runs=1, context=1000), replica("r1")], independent, inference(1000)
    )

    assert "r1" == ranked[0].replica_id


def test_with_equal_delay_the_last_replica_is_chosen_and_then_the_freest() -> None:
    assert "r1" == best(500, replica("r0"), replica("r1"), served=("r0", "r1"))
    assert "r0" == best(500, replica("r1", runs=1), replica("r0", runs=1))


def test_context_in_use_is_known_by_its_name() -> None:
    """A sub-agent continues from a context that another one has read, while that runs."""
    named = Prefix(2000, b"context")
    busy, idle = replica("r0"), replica("r1")
    busy.leases.join("l", (named,))
    busy.leases["l"] = Footprint(10, 1, 2010, "a")

    ranked = rank([idle, busy], application(), inference(2020, named))
    assert ["r0", "r1"] == [one.replica_id for one in ranked]


def test_replicas_without_a_cache_are_ranked_by_earlier_service_and_free_memory() -> None:
    one, other = replica("r0", runs=3, caches=False), replica("r1", caches=False)

    assert "r0" == best(1000, one, other, served=("r0",))
    assert "r1" == best(1000, one, other)


def a_core(*, caches: bool = True) -> CoreDriver:
    driver = CoreDriver(SchedulerCore("fcfs", timeouts=PATIENT))
    driver.pull("r0", kv=KV, caches=caches)
    driver.open("a")
    return driver


def lying(driver: CoreDriver, name: str = "r0") -> dict[str, int]:
    known = driver.core.state.replicas[name].contexts
    return {one: context.tokens for one, context in known.idle()}


def first_token(driver: CoreDriver, request: str, *, found: int) -> None:
    progress = ev.LeaseProgress(driver.lease_of(request), 0, 1, running=True, cached_tokens=found)
    driver.handle(ev.ReplicaReported("r0", (progress,), (), asks=True))


def test_prompt_is_awaited_until_its_first_token_and_its_context_stays_behind() -> None:
    driver = a_core()
    driver.submit("a1", prompt=1000)
    known = driver.core.state.replicas["r0"]
    assert 1000 == known.uncomputed_tokens
    first_token(driver, "a1", found=0)
    assert 0 == known.uncomputed_tokens
    driver.end("a1", 1000)
    assert {"a": 1010} == lying(driver)

    driver.submit("a2", prompt=1200)
    assert 190 == known.uncomputed_tokens
    assert {} == lying(driver)
    driver.end("a2", 1200)
    assert {"a": 1210} == lying(driver)


def test_inference_cancelled_before_its_first_token_keeps_the_context() -> None:
    driver = a_core()
    driver.submit("a1", prompt=1000)
    driver.end("a1", 1000)
    driver.submit("a2", prompt=1200)
    driver.handle(ev.InferenceCancelled("a2"))

    assert {"a": 1010} == lying(driver)
    assert 0 == driver.core.state.replicas["r0"].uncomputed_tokens


def three_sessions() -> CoreDriver:
    """Return a core with idle contexts of three applications."""
    driver = a_core()
    for name in ("a", "b", "c"):
        if name != "a":
            driver.open(name)
        driver.submit(f"{name}1", name, prompt=1000)
        driver.end(f"{name}1", 1000)
    return driver


def test_cache_miss_of_one_application_does_not_evict_contexts_of_others() -> None:
    """Prompts of one application may share no prefix; no caller may evict others' records."""
    driver = three_sessions()
    driver.submit("b2", "b", prompt=1100)
    first_token(driver, "b2", found=16)

    assert {"a": 1010, "c": 1010} == lying(driver)


def test_eviction_of_a_found_context_implies_eviction_of_older_ones() -> None:
    driver = three_sessions()
    driver.submit("b2", "b", prompt=1100)
    first_token(driver, "b2", found=1000)
    driver.end("b2", 1100)
    driver.submit("c2", "c", prompt=1100)
    driver.end("c2", 1100)
    driver.submit("b3", "b", prompt=1200)
    first_token(driver, "b3", found=16)

    assert {"c": 1110} == lying(driver)


def test_call_without_a_context_has_its_own() -> None:
    """A call for a title, or of a sub-agent, computes all of its prompt and continues nothing."""
    driver = a_core()
    driver.submit("a1", prompt=5000)
    driver.end("a1", 5000)
    driver.submit("title", prompt=300)
    assert 300 == driver.core.state.replicas["r0"].uncomputed_tokens
    first_token(driver, "title", found=0)
    driver.end("title", 300)

    contexts = driver.core.state.replicas["r0"].contexts
    assert [5010, 310] == [context.tokens for _, context in contexts.idle()]


def test_turn_of_a_sub_agent_goes_where_its_own_context_lies() -> None:
    """Its agent's longer context lies there, too; on the other replica a sibling's shorter one."""
    agent, other = replica("r0", runs=1, context=5000), replica("r1")
    agent.contexts.put("a", Context(400, 410), KV)
    other.contexts.put("a", Context(200, 210), KV)

    assert "r0" == best(500, other, agent)
    assert "r1" == best(300, other, agent)
    assert "r0" == best(5100, other, agent)


def test_attempt_without_a_payload_leaves_no_context() -> None:
    """The output of an earlier attempt on another replica is in no cache here."""
    driver = a_core()
    driver.submit("a1", prompt=1000, output=50)
    first_token(driver, "a1", found=0)
    driver.pull("r1", kv=KV, caches=True)
    driver.handle(ev.ReplicaLost("r0"))
    assert "r1" == driver.core.state.leases[driver.lease_of("a1")].replica_id
    driver.handle(ev.InferenceCancelled("a1"))

    assert {} == lying(driver, "r1")


def test_cache_that_is_switched_off_has_no_contexts() -> None:
    driver = three_sessions()
    driver.pull("r0", kv=KV)

    assert {} == lying(driver)


def test_contexts_of_an_application_that_has_ended_are_known_as_such() -> None:
    driver = three_sessions()
    driver.handle(ev.ApplicationClosed("a"))
    known = driver.core.state.replicas["r0"].contexts

    assert (3030, 2020) == (known.tokens, known.live_tokens)


def test_replica_without_a_cache_keeps_no_context() -> None:
    driver = a_core(caches=False)
    driver.submit("a1", prompt=1000)
    driver.end("a1", 1000)

    assert {} == lying(driver)


def test_new_scheduler_takes_contexts_to_lie_where_they_ran_last() -> None:
    driver = a_core()
    driver.submit("a1", prompt=1000)
    driver.end("a1", 1000)
    driver.hand_over(SchedulerCore("fcfs", timeouts=PATIENT))
    driver.pull("r1", kv=KV, caches=True)
    driver.pull("r0", kv=KV, caches=True)

    assert {} == lying(driver, "r1")
    assert {"a": 1000} == lying(driver, "r0")
