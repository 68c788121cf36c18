"""Serve's autoscaling policy of a model: its answers to the controller, which it never blocks."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve.autoscaling_policy import _apply_autoscaling_config
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from justitia_ray.serve.drain_policy import DrainTimePolicy, LoadTimes, PolledAnswers
from tests.eventually import eventually

RULES = {"minimum": 0, "maximum": 10}
ARGUMENTS: dict[str, Any] = {
    "scheduler": "scheduler/demo/m",
    "namespace": "justitia",
    "rules": RULES,
}
STALE_S = 15.0
DEPLOYMENT = DeploymentID("Replica", "demo")


class PlannedAnswers:
    """Planned answers of the scheduler, and the requests it received."""

    def __init__(
        self, wanted: int | None, age_s: float = 0.0, leaving: list[str] | None = None
    ) -> None:
        self.wanted = wanted
        self.age_s = age_s
        self.leaving = {} if leaving is None else {"leaving": leaving}
        self.questions: list[dict[str, Any]] = []

    def latest(self, question: dict[str, Any]) -> tuple[dict[str, Any], float] | None:
        self.questions.append(question)
        if self.wanted is None:
            return None
        return {"wanted": self.wanted, "reason": "drain", **self.leaving}, self.age_s


def context_of(
    running: int, target: int, *, requests: float = 0.0, now: float = 0.0, **config: Any
) -> AutoscalingContext:
    """Return the context that Ray Serve's controller passes to a policy."""
    settings = AutoscalingConfig(
        **{"min_replicas": 0, "max_replicas": 10, "target_ongoing_requests": 2, **config}
    )
    return AutoscalingContext(
        deployment_id=None,
        deployment_name="Replica",
        app_name="demo",
        current_num_replicas=running,
        target_num_replicas=target,
        running_replicas=[ReplicaID(f"r{number}", DEPLOYMENT) for number in range(running)],
        total_num_requests=requests,
        total_queued_requests=None,
        aggregated_metrics=None,
        raw_metrics=None,
        capacity_adjusted_min_replicas=0,
        capacity_adjusted_max_replicas=10,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=now,
        config=settings,
    )


def policy(told: PlannedAnswers) -> DrainTimePolicy:
    return DrainTimePolicy(**ARGUMENTS, stale_s=STALE_S, answers=told)


def test_autoscaling_request_contains_rules_and_loading_replicas() -> None:
    """The scheduler computes the size from the rules and the loading replicas."""
    told = PlannedAnswers(3)
    wanted, state = policy(told)(context_of(2, 5))

    assert (3, {"wanted": 3, "reason": "drain"}) == (wanted, state)
    assert [
        {
            "rules": RULES,
            "fleet": {"starting": 3, "load_s": None},
            "running": ["r0", "r1"],
        }
    ] == told.questions


@pytest.mark.parametrize(
    "told", [PlannedAnswers(None), PlannedAnswers(1, age_s=STALE_S + 1)], ids=["none", "old"]
)
def test_number_of_replicas_stays_while_the_scheduler_does_not_answer(told: PlannedAnswers) -> None:
    """Replicas hold leases of the restarting scheduler and must not end."""
    assert 4 == policy(told)(context_of(4, 4))[0]


def test_request_count_of_serve_adds_replicas_if_the_scheduler_is_silent() -> None:
    """Seven requests at two per replica need four replicas, and three exist."""
    assert 4 == policy(PlannedAnswers(None))(context_of(3, 3, requests=7))[0]
    assert 3 == policy(PlannedAnswers(None))(context_of(3, 3, requests=1))[0]


def test_first_replica_starts_at_once_for_a_waiting_inference() -> None:
    """The calls wait in the scheduler's queue, where Ray Serve does not count them."""
    decide = _apply_autoscaling_config(policy(PlannedAnswers(1)))

    assert 1 == decide(context_of(0, 0, upscale_delay_s=30.0))[0]


def test_smaller_target_does_not_stop_replicas_while_scaling_from_zero() -> None:
    """While no replica runs, Ray Serve applies each target without the scale-down delay."""
    decide = _apply_autoscaling_config(policy(PlannedAnswers(1)))

    assert 3 == decide(context_of(0, 3, downscale_delay_s=600.0))[0]


def test_scale_to_zero_waits_for_ray_serves_downscale_delay() -> None:
    """A queue that is empty for a moment does not end the last replica."""
    decide = _apply_autoscaling_config(policy(PlannedAnswers(0)))

    assert 1 == decide(context_of(1, 1, downscale_delay_s=600.0))[0]
    assert 0 == decide(context_of(1, 1, downscale_delay_s=0.0))[0]


@pytest.mark.parametrize(
    ("wanted", "leaving", "asked"),
    [
        (1, ["r0"], 2),
        (3, ["r0", "r1"], 5),
        (3, [], 3),
        (3, None, 3),
        (3, ["r8"], 3),
        (0, ["r0"], 0),
    ],
    ids=["one", "several", "none", "earlier scheduler", "gone since the question", "no need"],
)
def test_draining_replicas_are_added_to_ray_serves_target(
    wanted: int, leaving: list[str] | None, asked: int
) -> None:
    """A restarted controller counts draining replicas as running until they have ended.

    Without the addition waiting calls would wait as long as the longest stream.
    """
    assert asked == policy(PlannedAnswers(wanted, leaving=leaving))(context_of(2, 2))[0]


def test_loading_time_of_a_replica_ends_at_its_first_report() -> None:
    """Two replicas are requested at 10 s and serve at 40 s and 50 s; the median is reported."""
    loads = LoadTimes()
    for now, running, target in ((0, 1, 1), (10, 1, 3), (40, 2, 3), (50, 3, 3)):
        loads.observe(running, target, float(now))

    assert 40.0 == loads.median_load_s


def test_replicas_found_by_a_restarted_controller_have_no_loading_time() -> None:
    """The first second after a controller restart must not count as a load of 1 s.

    The replica that is missing later has loaded for 30 s.
    """
    loads = LoadTimes()
    for now, running in ((0.0, 0), (0.8, 3), (1.0, 4)):
        loads.observe(running, 4, now)
    found = loads.median_load_s
    for now, running in ((10.0, 3), (40.0, 4)):
        loads.observe(running, 4, now)

    assert found is None
    assert 30.0 == loads.median_load_s


def test_loading_time_of_a_replacement_begins_at_the_loss_of_the_replica() -> None:
    """Serve replaces the replica without a change of the target."""
    loads = LoadTimes()
    for now, running in ((0, 2), (5, 1), (25, 2)):
        loads.observe(running, 2, float(now))

    assert 20.0 == loads.median_load_s


def test_abandoned_start_of_a_replica_gives_no_loading_time() -> None:
    loads = LoadTimes()
    for now, running, target in ((0, 1, 1), (1, 1, 2), (5, 1, 3), (7, 1, 2), (30, 2, 2)):
        loads.observe(running, target, float(now))

    assert 29.0 == loads.median_load_s


def test_autoscaling_policy_can_be_loaded_without_the_package_installed() -> None:
    """Ray Serve's controller lacks the application's runtime environment."""
    made = AutoscalingPolicy(policy_function=DrainTimePolicy, policy_kwargs=ARGUMENTS)
    script = (
        "import sys; sys.modules['justitia_ray'] = None\n"
        "import cloudpickle\n"
        "made = cloudpickle.loads(sys.stdin.buffer.read())\n"
        f"print(type(made(**{ARGUMENTS!r})).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=made.get_serialized_policy_def(),
        capture_output=True,
        check=False,
    )

    assert b"DrainTimePolicy\n" == done.stdout, done.stderr.decode()


# --- the thread


class StandInActor:
    """Fake scheduler actor, and a `ray.get` that returns its answers."""

    def __init__(self) -> None:
        self.size = self
        self.free = threading.Event()
        self.free.set()
        self.answers: list[dict[str, Any] | Exception | None] = []
        self.asked: list[dict[str, Any]] = []

    def remote(self, question: dict[str, Any]) -> "StandInActor":
        self.asked.append(question)
        return self

    def get(self, _: object, *, timeout: float) -> dict[str, Any] | None:
        """Return the next answer once it is released; the last one repeats."""
        assert timeout > 0
        self.free.wait()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def scheduler_actor(monkeypatch: pytest.MonkeyPatch) -> StandInActor:
    """Fake scheduler actor that this process finds in a cluster."""
    stand_in = StandInActor()

    def get_actor(name: str, namespace: str) -> StandInActor:
        assert (ARGUMENTS["scheduler"], ARGUMENTS["namespace"]) == (name, namespace)
        return stand_in

    monkeypatch.setattr(ray, "get_actor", get_actor)
    monkeypatch.setattr(ray, "get", stand_in.get)
    return stand_in


def policy_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "justitia-drain-policy"]


@pytest.fixture
def polled(scheduler_actor: StandInActor) -> Iterator[list[PolledAnswers]]:
    """Answers polled a hundred times a second, in a list that holds the only reference."""
    assert scheduler_actor.free.is_set()
    held = [PolledAnswers(ARGUMENTS["scheduler"], ARGUMENTS["namespace"], 0.01)]
    yield held
    held.clear()
    for thread in policy_threads():
        thread.join(10.0)


def wanted_replicas(polled: list[PolledAnswers]) -> int | None:
    latest = polled[0].latest({"n": 1})
    return None if latest is None else latest[0]["wanted"]


@pytest.mark.asyncio
async def test_serve_controller_does_not_wait_for_the_scheduler(
    scheduler_actor: StandInActor, polled: list[PolledAnswers]
) -> None:
    """The controller's single event loop serves the whole cluster."""
    scheduler_actor.free.clear()
    scheduler_actor.answers = [{"wanted": 2}]

    assert polled[0].latest({"n": 1}) is None
    scheduler_actor.free.set()
    await eventually(lambda: wanted_replicas(polled) == 2, "the answer is there")
    assert {"n": 1} in scheduler_actor.asked


@pytest.mark.asyncio
async def test_polling_of_the_scheduler_continues_after_a_failed_request(
    scheduler_actor: StandInActor, polled: list[PolledAnswers]
) -> None:
    """The polling thread must survive restarts of the scheduler."""
    scheduler_actor.answers = [{"wanted": 2}, ValueError("no actor"), None, {"wanted": 5}]

    await eventually(lambda: wanted_replicas(polled) == 2, "the first answer is there")
    await eventually(lambda: wanted_replicas(polled) == 5, "the later answer is there")


@pytest.mark.asyncio
async def test_polling_thread_ends_with_its_policy(
    scheduler_actor: StandInActor, polled: list[PolledAnswers]
) -> None:
    """Each deployment creates a policy in a controller that runs for months."""
    scheduler_actor.answers = [{"wanted": 2}]
    await eventually(lambda: wanted_replicas(polled) == 2, "it asks")
    assert 1 == len(policy_threads())
    polled.clear()

    await eventually(lambda: not policy_threads(), "it has ended")
