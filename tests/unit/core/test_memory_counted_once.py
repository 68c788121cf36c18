"""Shared prompt prefixes count once where a replica's engine holds them once."""

import pytest

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, Grant
from justitia_ray.core.entities import Inference, Outcome, ReplicaCapacity
from justitia_ray.core.prefixes import Prefix, pack_prefixes
from justitia_ray.core.scheduler import SchedulerCore
from justitia_ray.core.usage import read_totals
from tests.core_driver import CoreDriver

SYSTEM = Prefix(800, b"system.")
KV = 1_000


@pytest.fixture
def driver() -> CoreDriver:
    driver = CoreDriver()
    driver.open("a", cost=10_000)
    return driver


def create_submission(
    request_id: str, *prefixes: Prefix, prompt: int = 850, choices: int = 1, copies: int = 1
) -> ev.InferenceSubmitted:
    return ev.InferenceSubmitted(
        request_id,
        "a",
        request_id,
        "i0",
        prompt,
        10 * choices,
        10 * choices,
        choices,
        prefixes=pack_prefixes(prefixes),
        copies=copies,
    )


def pull_replica(
    driver: CoreDriver,
    *progress: ev.LeaseProgress,
    ends: tuple[ev.LeaseFinished, ...] = (),
    caches: bool = True,
    free: int = KV,
    block: int = 1,
) -> list[Action]:
    capacity = ReplicaCapacity(KV, block, 256, caches)
    return driver.handle(ev.ReplicaPulled("r0", capacity, free, progress, ends))


def granted_leases(actions: list[Action]) -> dict[str, str]:
    return {one.request_id: one.lease_id for one in actions if isinstance(one, Grant)}


def held_tokens(driver: CoreDriver) -> int:
    return driver.core.state.replicas["r0"].context_tokens


def running_lease(
    lease_id: str, made: int, cached: int | None, prompt: int = 0
) -> ev.LeaseProgress:
    return ev.LeaseProgress(lease_id, prompt, made, running=True, cached_tokens=cached)


@pytest.mark.parametrize(("caches", "at_once"), [(True, 3), (False, 1)])
def test_prompts_with_a_shared_system_prompt_run_in_parallel(
    driver: CoreDriver, caches: bool, at_once: int
) -> None:
    for number in range(5):
        driver.handle(create_submission(f"q{number}", SYSTEM))

    assert at_once == len(granted_leases(pull_replica(driver, caches=caches)))


def test_cache_miss_is_counted_at_the_first_token(driver: CoreDriver) -> None:
    for number in range(3):
        driver.handle(create_submission(f"q{number}", SYSTEM))
    leases = granted_leases(pull_replica(driver))
    first, second, third = (leases[f"q{number}"] for number in range(3))
    assert 800 + 3 * 50 == held_tokens(driver)

    pull_replica(
        driver,
        running_lease(first, 1, 0),
        running_lease(second, 1, 800),
        running_lease(third, 0, None),
    )
    assert 800 + 3 * 50 + 2 == held_tokens(driver)

    pull_replica(
        driver,
        running_lease(first, 1, 0),
        running_lease(second, 1, 800),
        running_lease(third, 1, 0),
    )
    assert 2 * 800 + 3 * 50 + 3 == held_tokens(driver)

    end = ev.LeaseFinished(first, 850, 10, Outcome.FINISHED)
    pull_replica(driver, running_lease(second, 1, 800), running_lease(third, 1, 0), ends=(end,))
    assert 800 + 2 * 50 + 2 == held_tokens(driver)


def test_choices_of_one_call_share_their_prompt(driver: CoreDriver) -> None:
    driver.handle(create_submission("q", prompt=4 * 161, choices=4, copies=4))
    lease = granted_leases(pull_replica(driver, block=16))["q"]
    replica = driver.core.state.replicas["r0"]

    assert 161 + 3 * 16 == replica.leases.context_tokens
    pull_replica(driver, running_lease(lease, 4, 3 * 145 - 64), block=16)
    assert 161 + 3 * 16 + 64 + 4 == replica.leases.context_tokens


def test_forecast_includes_a_prompt_beyond_its_shared_prefix() -> None:
    driver = CoreDriver(SchedulerCore(policy_options={"backfill": 8}))
    capacity = ReplicaCapacity(100_000, 16, 256, True)
    driver.handle(ev.ReplicaPulled("r0", capacity, 100_000, ()))
    beginning = pack_prefixes([Prefix(40_000, b"system.")])
    for name, prompt, output, prefixes in (
        ("a", 41_000, 100, beginning),
        ("first", 70_000, 500, b""),
        ("later", 41_000, 200, beginning),
    ):
        driver.open(name, cost=1e6)
        driver.handle(
            ev.InferenceSubmitted(name, name, name, "i0", prompt, output, output, prefixes=prefixes)
        )

    assert ["first"] == driver.waiting("first")


def test_free_kv_reported_by_the_engine_includes_idle_cached_tokens(driver: CoreDriver) -> None:
    for number in range(2):
        driver.handle(create_submission(f"q{number}", SYSTEM))
    leases = granted_leases(pull_replica(driver))
    replica = driver.core.state.replicas["r0"]
    reports = [running_lease(lease, 0, None) for lease in leases.values()]

    pull_replica(driver, *reports, free=KV - 100)
    assert (KV, 900) == (replica.leasable_tokens, held_tokens(driver))
    pull_replica(driver, *reports, free=KV - 950)
    assert KV - 50 == replica.leasable_tokens


def test_new_scheduler_counts_shared_prefixes_of_running_leases(driver: CoreDriver) -> None:
    for number in range(3):
        driver.handle(create_submission(f"q{number}", SYSTEM))
    leases = granted_leases(pull_replica(driver))
    found = dict(zip(leases.values(), (0, 800, 800), strict=True))
    reports = [running_lease(lease, 1, cached) for lease, cached in found.items()]
    pull_replica(driver, *reports)
    before = held_tokens(driver)

    for order in (list(leases), list(reversed(leases))):
        successor = CoreDriver(now=driver.now)
        successor.core.recover(["r0"], successor.now)
        successor.open("a", cost=10_000)
        for name in order:
            item = create_submission(name, SYSTEM)
            again = {"resubmitted": True, "lease_id": leases[name]}
            fields = {key: getattr(item, key) for key in item.__slots__} | again
            successor.handle(ev.InferenceSubmitted(**fields))
        pull_replica(successor, *reports)
        assert 3 == len(successor.core.state.leases)
        assert before == held_tokens(successor)


def test_cached_tokens_of_ended_inferences_are_counted(driver: CoreDriver) -> None:
    driver.handle(create_submission("q", SYSTEM))
    lease = granted_leases(pull_replica(driver))["q"]
    pull_replica(driver, running_lease(lease, 1, 512, prompt=850))
    (inference,) = driver.core.state.inferences.values()
    assert 850 - 512 == inference.begun_computed_tokens
    pull_replica(
        driver, ends=(ev.LeaseFinished(lease, 850, 10, Outcome.FINISHED, cached_tokens=512),)
    )
    state = driver.core.state

    assert 512 == driver.application("a").cached_tokens
    assert {"tenant": 512} == state.counters.cached_tokens
    (totals,) = state.usage.totals[0].values()
    assert (850, 512) == (totals.prompt_tokens, totals.cached_prompt_tokens)
    assert totals == read_totals(totals.record())
    earlier = {k: v for k, v in totals.record().items() if k != "cached_prompt_tokens"}
    assert 0 == read_totals(earlier).cached_prompt_tokens


def test_prompt_tokens_count_as_computed_when_all_choices_have_a_token() -> None:
    """Until each choice has a token, the cache hits of its prompt are unknown."""
    inference = Inference("q", "a", "q", "i0", 80, 20, 20, 2, 0.0, 1)
    inference.output_tokens = 1
    assert 0 == inference.begun_computed_tokens
    inference.cached_tokens = 48
    assert 32 == inference.begun_computed_tokens
