"""What if: the recorded past simulated as it was and otherwise."""

import json
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from justitia_ray.console.history import History, PastApplication, PastCall, history_of
from justitia_ray.console.what_if import Question, answer_to, estimate, times_of, tree_with_weights
from justitia_ray.core.tenants import TenantNode, TenantTree
from justitia_ray.errors import ConfigError
from justitia_ray.protocol.console_answers import Times, WhatIfAnswer
from justitia_ray.protocol.status import read_answer
from justitia_ray.sim.settings import RunSettings
from tests.harness.console.recorded import constant_engine, nine_class_applications, record_run
from tests.unit.console.recorded_core import RecordedCore

ITERATION_S = 0.02


def past_application(
    name: str, *calls: tuple[float, float, int], at: float = 0.0, tenant: str = "t"
) -> PastApplication:
    """Return a recorded application whose calls have 10 prompt tokens each."""
    return PastApplication(
        application_id=name,
        application_class="c",
        tenant=tenant,
        weight=1.0,
        arrived_at=at,
        finished_at=calls[-1][1],
        predicted_kv_token_time=float(sum(output * (10 + output) for _, _, output in calls)),
        calls=tuple(
            PastCall(str(number), submitted_at, ended_at, 10, output)
            for number, (submitted_at, ended_at, output) in enumerate(calls)
        ),
    )


def create_history(
    *applications: PastApplication, kv_tokens: int = 100_000, **more: object
) -> History:
    made = History(
        model="m",
        start=0.0,
        end=1_000.0,
        settings={"policy": "fcfs"},
        replicas=1,
        kv_tokens=kv_tokens,
        block_size=1,
        max_num_seqs=256,
        caches_prefixes=False,
        iteration_s=ITERATION_S,
        applications=applications,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def test_simulated_calls_follow_their_predecessors_after_the_recorded_tool_times() -> None:
    answer = estimate(
        create_history(past_application("a", (0.0, 100.0, 50), (104.0, 200.0, 50))), Question()
    )

    assert answer.measured.mean_s == 200.0
    assert answer.simulated.mean_s == pytest.approx(50 * ITERATION_S + 4.0 + 50 * ITERATION_S)


def test_what_if_question_without_changes_changes_nothing() -> None:
    one = past_application("a", (0.0, 1.0, 50))
    answer = estimate(create_history(one), Question())

    assert (answer.all.mean, answer.all.p90, answer.all.worst, answer.all.no_later) == (0, 0, 0, 1)
    assert answer.before == answer.after
    assert answer.is_estimate


def test_what_if_replicas_shorten_waits_for_memory() -> None:
    calls = [past_application(f"a{number}", (0.0, 9.0, 50)) for number in range(2)]
    answer = estimate(create_history(*calls, kv_tokens=70), Question(replicas=2))

    assert answer.all.before.worst_s == pytest.approx(2 * 50 * ITERATION_S, rel=0.1)
    assert answer.all.after.worst_s == pytest.approx(50 * ITERATION_S, rel=0.1)
    assert answer.all.worst == pytest.approx(-0.5, abs=0.05)


def test_what_if_effect_of_another_policy_is_listed_by_tenant() -> None:
    """Shortest first lets the short call of one tenant overtake the long call of another."""
    filler = past_application("filler", (0.0, 10.0, 500), tenant="x")
    long = past_application("long", (0.1, 30.0, 500), at=0.1, tenant="long")
    short = past_application("short", (0.2, 30.0, 10), at=0.2, tenant="short")
    answer = estimate(create_history(filler, long, short, kv_tokens=520), Question(policy="sjf"))

    assert set(answer.tenants) == {"x", "long", "short"}
    change = answer.tenants["short"]
    assert change.mean is not None
    assert change.mean < -0.5
    assert answer.tenants["long"].mean == pytest.approx(0.0)


def test_what_if_weights_change_the_order_under_fair_shares() -> None:
    calls = [
        past_application(f"{t}|a", (0.0, 9.0, 400), (9.0, 20.0, 400), tenant=t) for t in ("x", "y")
    ]
    recorded = create_history(*calls, kv_tokens=420, settings={"policy": "justitia"})
    answer = estimate(recorded, Question(weights={"y": 100.0}))

    assert answer.after.weights == {"y": 100.0}
    y = answer.tenants["y"]
    assert y.mean is not None
    assert y.mean < 0


def test_application_that_fits_no_replica_is_refused() -> None:
    with pytest.raises(ConfigError, match="no recorded application fits"):
        estimate(create_history(past_application("a", (0.0, 1.0, 50)), kv_tokens=40), Question())


def test_error_of_an_unknown_what_if_policy_names_the_policy() -> None:
    with pytest.raises(ConfigError, match="nonsense"):
        estimate(create_history(past_application("a", (0.0, 1.0, 50))), Question(policy="nonsense"))


def test_what_if_weights_apply_to_configured_and_other_tenants() -> None:
    tree = tree_with_weights(TenantTree({"a": TenantNode(weight=2.0)}), {"a": 5.0, "b": 3.0})

    assert tree.described["a"].weight == 5.0
    assert tree.weights["b"] == 3.0


def test_what_if_p90_is_interpolated_between_two_times() -> None:
    assert times_of([10.0, 20.0]) == Times(applications=2, mean_s=15.0, p90_s=19.0, worst_s=20.0)
    assert times_of([]).mean_s is None


@pytest.mark.slow
def test_what_if_estimate_without_changes_equals_the_recorded_run() -> None:
    """The estimate assumes constant iteration times, which the engines of this run have."""
    settings = RunSettings(constant_engine(), replicas=2)
    recorded = record_run(nine_class_applications(30), settings).history
    assert recorded is not None
    answer = estimate(recorded, Question(replicas=8))

    assert answer.applications == 30
    assert recorded.iteration_s == pytest.approx(ITERATION_S, rel=0.05)
    assert answer.measured.mean_s is not None
    assert answer.simulated.mean_s == pytest.approx(answer.measured.mean_s, rel=0.1)
    assert answer.all.mean is not None
    assert answer.all.mean <= 0


@pytest.mark.slow
def test_what_if_process_reads_a_question_and_prints_the_answer() -> None:
    question = {
        "history": asdict(create_history(past_application("a", (0.0, 1.0, 50)))),
        "asked": {"replicas": 2},
    }
    found = subprocess.run(
        [sys.executable, "-m", "justitia_ray.console.what_if"],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answer = read_answer(WhatIfAnswer, json.loads(found.stdout)["answer"], "answer")

    assert answer.after.replicas == 2


def test_invalid_what_if_question_is_answered_with_an_error() -> None:
    question = {
        "history": asdict(create_history(past_application("a", (0.0, 1.0, 50)))),
        "asked": {"policy": "x"},
    }

    assert "'x'" in answer_to(json.loads(json.dumps(question)))["error"]


def test_what_if_replays_only_applications_recorded_from_their_arrival() -> None:
    core = RecordedCore()
    core.pull()
    core.open("t|before", 100, tenant="t")
    core.submit("x", "t|before")
    core.now += 1.0
    core.watch_from_now()
    core.now += 1.0
    core.open("t|a", 100, tenant="t")
    core.submit("y", "t|a", prompt=10, output=20)
    core.now += 2.0
    found = history_of(core.core, core.watch, "m", {}, core.now, 60.0)

    assert found is not None
    assert [one.application_id for one in found.applications] == ["t|a"]
    assert (found.left_out, found.replicas, found.kv_tokens) == (1, 1, 1_000)
    [call] = found.applications[0].calls
    assert (call.ended_at, call.output_tokens) == (None, 20)


def test_what_if_needs_a_recorded_application() -> None:
    core = RecordedCore()
    core.pull()

    assert history_of(core.core, core.watch, "m", {}, core.now, 60.0) is None
