"""Serve's policy of a model: what it says to Serve's controller, and that it never waits there."""

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


class Told:
    """Answers that a test gives, and the questions."""

    def __init__(
        self, wanted: int | None, age_s: float = 0.0, leaving: list[str] | None = None
    ) -> None:
        self.wanted = wanted
        self.age_s = age_s
        self.leaving = {} if leaving is None else {"leaving": leaving}
        self.questions: list[dict[str, Any]] = []

    def latest(self, question: dict[str, Any]) -> tuple[dict[str, Any], float] | None:
        """Return the answer."""
        self.questions.append(question)
        if self.wanted is None:
            return None
        return {"wanted": self.wanted, "reason": "drain", **self.leaving}, self.age_s


def context(
    running: int, target: int, *, requests: float = 0.0, now: float = 0.0, **config: Any
) -> AutoscalingContext:
    """Return what Serve's controller tells a policy."""
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


def policy(told: Told) -> DrainTimePolicy:
    """Return a policy with these answers."""
    return DrainTimePolicy(**ARGUMENTS, stale_s=STALE_S, answers=told)


def test_scheduler_is_told_rules_and_what_loads() -> None:
    """It sizes by both, and knows neither."""
    told = Told(3)
    wanted, state = policy(told)(context(2, 5))

    assert (3, {"wanted": 3, "reason": "drain"}) == (wanted, state)
    assert [
        {
            "rules": RULES,
            "fleet": {"starting": 3, "load_s": None},
            "running": ["r0", "r1"],
        }
    ] == told.questions


@pytest.mark.parametrize("told", [Told(None), Told(1, age_s=STALE_S + 1)], ids=["none", "old"])
def test_without_an_answer_what_there_is_stays(told: Told) -> None:
    """A scheduler that is started again is no reason to end replicas: they hold its leases."""
    assert 4 == policy(told)(context(4, 4))[0]


def test_without_an_answer_serves_own_count_asks_for_more() -> None:
    """Seven requests at two a replica are four, where three are."""
    assert 4 == policy(Told(None))(context(3, 3, requests=7))[0]
    assert 3 == policy(Told(None))(context(3, 3, requests=1))[0]


def test_from_zero_serve_starts_one_at_once_though_it_counts_no_request() -> None:
    """Our queue holds the calls; Serve's own count of them is 0, and its delay does not apply."""
    decide = _apply_autoscaling_config(policy(Told(1)))

    assert 1 == decide(context(0, 0, upscale_delay_s=30.0))[0]


def test_what_loads_from_zero_is_not_ended_by_a_smaller_wish() -> None:
    """While none runs Serve takes each wish at once, without the delay of a scale-down."""
    decide = _apply_autoscaling_config(policy(Told(1)))

    assert 3 == decide(context(0, 3, downscale_delay_s=600.0))[0]


def test_to_zero_goes_by_serves_delay() -> None:
    """An empty queue for a moment is no empty queue."""
    decide = _apply_autoscaling_config(policy(Told(0)))

    assert 1 == decide(context(1, 1, downscale_delay_s=600.0))[0]
    assert 0 == decide(context(1, 1, downscale_delay_s=0.0))[0]


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
def test_what_serve_counts_though_it_leaves_is_asked_for_beside(
    wanted: int, leaving: list[str] | None, asked: int
) -> None:
    """A controller that is started again takes what drains for what runs, until it has gone.

    The calls that wait would wait for that, for as long as the longest stream lasts.
    """
    assert asked == policy(Told(wanted, leaving=leaving))(context(2, 2))[0]


def test_loading_time_is_from_the_wish_to_the_first_sight() -> None:
    """Two are wanted at 10 s; one serves at 40 s, the other at 50 s: the median is told."""
    loads = LoadTimes()
    for now, running, target in ((0, 1, 1), (10, 1, 3), (40, 2, 3), (50, 3, 3)):
        loads.observe(running, target, float(now))

    assert 40.0 == loads.usual_s


def test_replicas_that_a_new_controller_finds_have_not_loaded() -> None:
    """For a second after its death none runs; sized by loads of a second there would be too many.

    The one that is missed later has loaded for 30 s.
    """
    loads = LoadTimes()
    for now, running in ((0.0, 0), (0.8, 3), (1.0, 4)):
        loads.observe(running, 4, now)
    found = loads.usual_s
    for now, running in ((10.0, 3), (40.0, 4)):
        loads.observe(running, 4, now)

    assert found is None
    assert 30.0 == loads.usual_s


def test_replica_that_died_loads_from_when_it_is_missed() -> None:
    """Serve starts another without a change of the target."""
    loads = LoadTimes()
    for now, running in ((0, 2), (5, 1), (25, 2)):
        loads.observe(running, 2, float(now))

    assert 20.0 == loads.usual_s


def test_start_that_is_given_up_is_no_load() -> None:
    """Those asked for last go first, as Serve ends them."""
    loads = LoadTimes()
    for now, running, target in ((0, 1, 1), (1, 1, 2), (5, 1, 3), (7, 1, 2), (30, 2, 2)):
        loads.observe(running, target, float(now))

    assert 29.0 == loads.usual_s


def test_class_is_for_a_process_that_has_not_this_package() -> None:
    """Serve's controller has not the application's runtime environment."""
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
    """A scheduler actor, and `ray.get` of what it answers."""

    def __init__(self) -> None:
        self.size = self
        self.free = threading.Event()
        self.free.set()
        self.answers: list[dict[str, Any] | Exception | None] = []
        self.asked: list[dict[str, Any]] = []

    def remote(self, question: dict[str, Any]) -> "StandInActor":
        """Take a question."""
        self.asked.append(question)
        return self

    def get(self, _: object, *, timeout: float) -> dict[str, Any] | None:
        """Return the next answer once it is let go; the last one again and again."""
        assert timeout > 0
        self.free.wait()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> StandInActor:
    """A scheduler that this process would find in a cluster."""
    stand_in = StandInActor()

    def get_actor(name: str, namespace: str) -> StandInActor:
        assert (ARGUMENTS["scheduler"], ARGUMENTS["namespace"]) == (name, namespace)
        return stand_in

    monkeypatch.setattr(ray, "get_actor", get_actor)
    monkeypatch.setattr(ray, "get", stand_in.get)
    return stand_in


def asking() -> list[threading.Thread]:
    """Return the threads that ask."""
    return [one for one in threading.enumerate() if one.name == "justitia-drain-policy"]


@pytest.fixture
def polled(actor: StandInActor) -> Iterator[list[PolledAnswers]]:
    """Answers that are asked for a hundred times a second, in a list that alone holds them."""
    assert actor.free.is_set()
    held = [PolledAnswers(ARGUMENTS["scheduler"], ARGUMENTS["namespace"], 0.01)]
    yield held
    held.clear()
    for thread in asking():
        thread.join(10.0)


def wanted(polled: list[PolledAnswers]) -> int | None:
    """Return how many are wanted by the last answer."""
    latest = polled[0].latest({"n": 1})
    return None if latest is None else latest[0]["wanted"]


@pytest.mark.asyncio
async def test_controller_does_not_wait_for_the_scheduler(
    actor: StandInActor, polled: list[PolledAnswers]
) -> None:
    """The controller's one loop serves the whole cluster."""
    actor.free.clear()
    actor.answers = [{"wanted": 2}]

    assert polled[0].latest({"n": 1}) is None
    actor.free.set()
    await eventually(lambda: wanted(polled) == 2, "the answer is there")
    assert {"n": 1} in actor.asked


@pytest.mark.asyncio
async def test_failure_leaves_the_last_answer_to_age_and_is_tried_again(
    actor: StandInActor, polled: list[PolledAnswers]
) -> None:
    """A scheduler dies and comes back; a thread that died of it would never hear of that."""
    actor.answers = [{"wanted": 2}, ValueError("no actor"), None, {"wanted": 5}]

    await eventually(lambda: wanted(polled) == 2, "the first answer is there")
    await eventually(lambda: wanted(polled) == 5, "the later answer is there")


@pytest.mark.asyncio
async def test_thread_ends_with_the_policy(
    actor: StandInActor, polled: list[PolledAnswers]
) -> None:
    """Each deployment makes a policy of its own, in a controller that lives for months."""
    actor.answers = [{"wanted": 2}]
    await eventually(lambda: wanted(polled) == 2, "it asks")
    assert 1 == len(asking())
    polled.clear()

    await eventually(lambda: not asking(), "it has ended")
