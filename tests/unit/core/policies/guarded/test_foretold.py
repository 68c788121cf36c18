"""Worked examples of predicted deadlines, and of the state that a new scheduler continues from."""

import json
from typing import Any

import pytest

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import Delivery
from justitia_ray.core.policies.guarded.foretold import ForetoldVtc
from justitia_ray.core.policies.guarded.known_stages import CriticalPath
from justitia_ray.core.policies.guarded.pace import Pace
from justitia_ray.core.served_rate import HALF_LIFE_S, USUAL_ITERATION_S
from justitia_ray.core.stages import ExpectedStage

ONE = ExpectedStage(1, 100, 1000, 40, 0)
FOUR = ExpectedStage(4, 100, 1000, 40, 0)


def _create_application(name: str, *expected: ExpectedStage, weight: float = 1) -> Application:
    application = Application(name, "c", "t", weight, 1, "i", 0.0, int(name))
    application.expected_stages = expected
    return application


def _create_inference(
    request_id: str, output: int = 10, stage: int = 0, name: str = "1"
) -> Inference:
    return Inference(request_id, name, request_id, "i", 20, output, 99, 1, 0.0, 1, stage=stage)


def _create_delivery(
    amount: float, request_id: str = "x", made: int = 10, choices: int = 1
) -> Delivery:
    return Delivery("1", request_id, 20, 0, made, amount, choices)


def _simulated_vtc(kv_tokens: float = 0) -> ForetoldVtc:
    """Return a simulated VTC on replicas with this KV memory in tokens."""
    return ForetoldVtc(lambda: kv_tokens)


def _simulated_vtc_at_pace(
    kv_per_s: float = 100, iteration_s: float = 0.1, kv_tokens: float = 0
) -> ForetoldVtc:
    foretold = _simulated_vtc(kv_tokens)
    foretold.pace.kv_per_s, foretold.pace.iteration_s = kv_per_s, iteration_s
    return foretold


def test_single_inference_is_expected_to_end_after_its_duration() -> None:
    """VTC starts the first inference of an application at once."""
    foretold = _simulated_vtc_at_pace()
    foretold.arrived(_create_application("1", ONE), 7.0)

    assert 7.0 + 40 * 0.1 == foretold.deadline("1", 7.0)


def test_last_of_four_inferences_starts_three_quarters_into_its_stage() -> None:
    foretold = _simulated_vtc_at_pace(kv_tokens=31.25)
    foretold.arrived(_create_application("1", FOUR), 0.0)

    assert 7.5 + 4 == pytest.approx(foretold.deadline("1", 0.0))


def test_stage_lasts_until_its_last_call_ends() -> None:
    foretold = _simulated_vtc_at_pace()
    application = _create_application("1", FOUR)
    foretold.arrived(application, 0.0)
    foretold.served([_create_delivery(500)], 5.0)
    foretold.submitted(application, _create_inference("x"), 5.0)

    assert not foretold.clock.shadows["1"].is_through
    for number in range(3):
        foretold.submitted(application, _create_inference(f"y{number}"), 5.0)
    assert 160 == foretold.clock.shadows["1"].stages[0].compute_tokens


def test_shadow_divides_service_between_two_applications_by_weight() -> None:
    """With weights 1 and 3, applications of 75 and 25 tokens take 30 and 10 s.

    Before that the first call of "2" is served, 2.5 s, for which there is no memory.
    """
    foretold = _simulated_vtc_at_pace(kv_tokens=31.25)
    foretold.arrived(_create_application("1", FOUR), 0.0)
    foretold.arrived(_create_application("2", FOUR, weight=3), 0.0)

    assert 2.5 + 30 + 4 == pytest.approx(foretold.deadline("1", 0.0))
    assert 2.5 + 10 + 4 == pytest.approx(foretold.deadline("2", 0.0))


def test_predicted_tool_call_takes_wall_time_and_no_service() -> None:
    foretold = _simulated_vtc_at_pace()
    foretold.arrived(_create_application("1", ONE._replace(gap_s=6), ONE), 0.0)
    foretold.served([_create_delivery(1000)], 5.0)
    foretold.pace.kv_per_s, foretold.pace.iteration_s = 100, 0.1

    assert 4 + 6 + 4 == foretold.deadline("1", 5.0)
    assert (100, 0) == (foretold.clock.level, foretold.clock.density.total)

    foretold.served([_create_delivery(500)], 9.0)

    assert 100 == foretold.clock.level


def test_application_without_predicted_stages_uses_its_submitted_calls() -> None:
    foretold, application = _simulated_vtc_at_pace(), _create_application("1")
    foretold.arrived(application, 0.0)

    assert foretold.deadline("1", 0.0) is None

    foretold.submitted(application, _create_inference("x"), 0.0)

    assert 10 * 0.1 == foretold.deadline("1", 0.0)


def test_sums_of_a_stage_do_not_depend_on_the_order_of_its_calls() -> None:
    foretold, application = _simulated_vtc_at_pace(), _create_application("1")
    calls = {
        name: _create_inference(name, output) for name, output in (("x", 10), ("y", 30), ("z", 20))
    }
    for call in calls.values():
        foretold.submitted(application, call, 0.0)
    foretold.submitted(application, _create_inference("y", 12), 0.0)
    calls["z"].output_tokens = 15
    foretold.ended(application, calls["z"], 0.0)
    foretold.submitted(application, _create_inference("later", 7, stage=1), 0.0)
    foretold.ended(application, calls["x"], 0.0)  # call x produced no output

    of_y, of_z = (20 * 12 + 12 * 13 / 2), (20 * 15 + 15 * 16 / 2)
    assert foretold.clock.shadows["1"].stages == [
        ExpectedStage(2, (20 + 2 * 12) + (20 + 2 * 15), of_y + of_z, 15, 0),
        ExpectedStage(1, 20 + 2 * 7, 20 * 7 + 7 * 8 / 2, 7, 0),
    ]
    assert CriticalPath(12, 0) == foretold.critical_path("1")


def test_progress_report_renews_only_the_heap_entries_of_its_inferences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    foretold = _simulated_vtc_at_pace()
    for number in range(1, 30):
        foretold.arrived(_create_application(str(number), FOUR), 0.0)
    foretold.urgent(0.0)
    placed: list[str] = []
    place = foretold._sort_candidate

    def record_heap_entry(name: str, rates: Any) -> None:
        placed.append(name)
        place(name, rates)

    monkeypatch.setattr(foretold, "_sort_candidate", record_heap_entry)
    foretold.pace.kv_per_s = 170
    monkeypatch.setattr(foretold.pace, "observe", lambda deliveries, now: 0.0)

    foretold.urgent(1.0)
    assert 1 == len(placed)

    foretold.served([_create_delivery(1, "x"), _create_delivery(1, "y")], 2.0)
    foretold.urgent(2.0)

    assert 1 + 2 == len(set(placed))


def test_call_without_output_does_not_change_the_expected_stages() -> None:
    """A caller that gives up while it waits has not shown that the stage is small."""
    foretold, application = _simulated_vtc_at_pace(), _create_application("1", ONE)
    inference = _create_inference("x")
    foretold.submitted(application, inference, 0.0)
    before = foretold.deadline("1", 0.0)
    foretold.ended(application, inference, 0.0)

    assert (1.0, 4.0) == (before, foretold.deadline("1", 0.0))


def test_critical_path_includes_the_running_and_all_later_stages() -> None:
    foretold = _simulated_vtc_at_pace()
    application = _create_application("1", ONE._replace(gap_s=2), ONE._replace(gap_s=3), ONE)
    foretold.arrived(application, 0.0)

    assert CriticalPath(120, 5) == foretold.critical_path("1")

    short, long = _create_inference("x", 10), _create_inference("y", 30)
    foretold.submitted(application, short, 0.0)
    foretold.submitted(application, long, 0.0)

    assert CriticalPath(30 + 80, 5) == foretold.critical_path("1")

    long.output_tokens = 30
    foretold.ended(application, long, 0.0)

    assert CriticalPath(10 + 80, 5) == foretold.critical_path("1")


def test_predicted_ends_are_unknown_before_any_service() -> None:
    """Deadlines need the replicas' speed, which is unknown before any service."""
    foretold = _simulated_vtc()
    foretold.arrived(_create_application("1", FOUR), 0.0)

    assert foretold.deadline("1", 0.0) is None
    assert [] == foretold.urgent(1e9)


def test_application_that_never_submitted_is_forgotten_at_its_end() -> None:
    foretold, application = _simulated_vtc_at_pace(), _create_application("1", FOUR)
    foretold.arrived(application, 0.0)
    foretold.arrived(_create_application("2", FOUR), 0.0)
    foretold.application_ended(application, 0.0)
    foretold.application_ended(_create_application("3"), 0.0)

    assert foretold.deadline("1", 0.0) is None
    assert 10 == foretold.clock.density.total
    assert CriticalPath(0, 0) == foretold.critical_path("1")


def test_simulation_of_an_ended_application_continues_until_it_is_served() -> None:
    foretold, application = _simulated_vtc_at_pace(), _create_application("1", FOUR, FOUR)
    calls = [_create_inference("x"), _create_inference("y")]
    for call in calls:
        foretold.submitted(application, call, 0.0)
    foretold.arrived(_create_application("2", FOUR), 0.0)
    for call in calls:
        call.output_tokens = 10
        foretold.ended(application, call, 0.0)
    foretold.application_ended(application, 0.0)

    assert foretold.deadline("1", 0.0) is None
    assert 510 / 80 + 10 == foretold.clock.density.total
    assert 255 + 250 == foretold.clock.owed

    foretold.served([_create_delivery(255 + 250 + 255 + 401)], 1.0)

    assert {"2"} == foretold.clock.shadows.keys()
    assert 10 == foretold.clock.density.total


@pytest.mark.parametrize("kv_tokens", [0, 300])
def test_restored_scheduler_makes_the_predictions_of_its_predecessor(kv_tokens: float) -> None:
    before = _simulated_vtc_at_pace(kv_tokens=kv_tokens)
    applications = [
        _create_application("1", FOUR, FOUR),
        _create_application("2", ONE, weight=9),
        _create_application("3", ONE._replace(compute_tokens=10, gap_s=30), FOUR),
        _create_application("4"),
    ]
    for application in applications:
        before.arrived(application, 0.0)
    before.dispatched(_create_inference("x"), 0.0)
    before.submitted(applications[0], _create_inference("y"), 0.0)
    for now in (4.0, 5.0):
        before.served([_create_delivery(500)], now)
        before.pace.kv_per_s, before.pace.iteration_s = 90, 0.1
    assert before.clock.flights.gathers == (kv_tokens > 0)
    gone = _create_application("5")
    before.submitted(gone, _create_inference("g", 99, name="5"), 5.0)
    before.application_ended(gone, 5.0)
    after = _simulated_vtc(kv_tokens)
    after.restore(json.loads(json.dumps(before.state())))
    for application in applications:
        if kept := before.application_state(application.application_id):
            after.restore_application(application, json.loads(json.dumps(kept)))
    after.submitted(applications[0], _create_inference("y"), 5.0)  # the ingress resubmits y
    for foretold in (before, after):
        foretold.served([_create_delivery(800, "z")], 6.0)
        foretold.pace.kv_per_s, foretold.pace.iteration_s = 90, 0.1

    deadlines = [before.deadline(name, 6.0) for name in "123"]
    assert None not in deadlines
    assert deadlines == pytest.approx([after.deadline(name, 6.0) for name in "123"])
    assert before.deadline("4", 6.0) is after.deadline("4", 6.0) is None
    assert before.urgent(6.0) == after.urgent(6.0)
    assert before.clock.density.total == after.clock.density.total
    assert before.clock.owed == pytest.approx(after.clock.owed)
    flights, others = before.clock.flights, after.clock.flights
    assert flights.rest(6.0) == pytest.approx(others.rest(6.0))
    assert flights.held_rate == pytest.approx(others.held_rate)


def test_restored_scheduler_measures_running_calls_from_their_last_report() -> None:
    before, after, application = (
        _simulated_vtc(),
        _simulated_vtc(),
        _create_application("1", ONE),
    )
    before.arrived(application, 0.0)
    for name in ("x", "y"):
        before.submitted(application, _create_inference(name), 0.0)
        before.dispatched(_create_inference(name), 0.0)
    before.served([_create_delivery(10, "x"), _create_delivery(10, "y")], 2.0)
    before.served([_create_delivery(10, "y")], 3.0)
    after.restore(json.loads(json.dumps(before.state())))
    kept = before.application_state("1")
    after.restore_application(application, json.loads(json.dumps(kept)))

    assert kept == after.application_state("1")  # the scheduler may die before any lease is adopted
    for name in ("x", "y"):
        after.submitted(application, _create_inference(name), 3.0)
        after.adopted(_create_inference(name), 3.0)
    for foretold in (before, after):
        foretold.served([_create_delivery(10, "x")], 5.0)
    assert before.pace.state() == after.pace.state()


@pytest.mark.parametrize(
    "damage",
    [
        {"level": "x"},
        {"owed": None},
        {"pace": {}},
        {"ended": {"1": {}}},
        {"level": None},
        {"kv_tokens": -1},
        {"cohorts": None},
        {"cohorts": {"flying": [{"until": 3, "rate": 0}], "gathering": None}},
        {"cohorts": {"flying": [], "gathering": {"service": 3, "rate": 1}}},
    ],
)
def test_damaged_stored_vtc_prediction_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|missing|allowed"):
        _simulated_vtc().restore(_simulated_vtc().state() | damage)


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        ("shadow", {"at": 2}),
        ("shadow", {"at": -1}),
        ("shadow", {"stages": [[1, 2, "x", 4, 5]]}),
        ("shadow", {"stages": [[1, 2]]}),
        ("shadow", {"weight": 0}),
        ("shadow", None),
        ("told_at", {"x": None}),
        ("submitted", 3),
        ("submitted", [[-1, 0, 0, 0, 0]]),
    ],
)
def test_damaged_stored_vtc_prediction_of_an_application_is_refused(part: str, damage: Any) -> None:
    """Every field is checked before any state is restored."""
    before, application = _simulated_vtc_at_pace(), _create_application("1", ONE)
    before.arrived(application, 0.0)
    kept = before.application_state("1")
    assert kept is not None
    kept[part] = {**kept[part], **damage} if isinstance(damage, dict) else damage

    with pytest.raises(ValueError, match=r"must|missing|allowed"):
        _simulated_vtc().restore_application(application, kept)


def test_vtc_prediction_stored_by_release_0_2_0_is_reset() -> None:
    """Only the speed of the replicas is restored from a state that release 0.2.0 stored."""
    before, application = _simulated_vtc_at_pace(), _create_application("1", FOUR)
    before.pace.begin("x", 0.0)
    before.served([_create_delivery(500)], 5.0)
    state = before.state()
    shadow = {
        "weight": 1,
        "sequence": 1,
        "at": 0,
        "entered": 7.5,
        "gap_until": None,
        "passed_at": None,
        "released": False,
        "stages": [[*FOUR]],
    }
    after = _simulated_vtc()
    after.restore({"level": 50.0, "pace": state["pace"], "ended": {"2": shadow}})
    after.restore_application(application, {"shadow": shadow, "submitted": []})

    assert before.pace.kv_per_s == after.pace.kv_per_s
    assert {} == after.clock.shadows
    assert after.deadline("1", 5.0) is None

    after.submitted(application, _create_inference("y"), 6.0)

    assert (0, 0) == (after.clock.level, after.clock.shadows["1"].entered)


def test_measured_pace_counts_only_time_with_running_inferences() -> None:
    pace = Pace()
    for begun_at in (0.0, 3600.0):
        pace.begin("x", begun_at)
        pace.observe([_create_delivery(100)], begun_at + 1)
        pace.leave("x")

    assert 100 == pytest.approx(pace.kv_per_s)


def test_measured_pace_follows_the_last_minutes() -> None:
    pace = Pace()
    pace.begin("x", 0.0)
    for minute, rate in enumerate((100, 300, 300), start=1):
        pace.observe([_create_delivery(rate * HALF_LIFE_S)], minute * HALF_LIFE_S)

    assert (100 / 4 + 300 / 2 + 300) / 1.75 == pytest.approx(pace.kv_per_s)


def test_iteration_time_is_the_time_per_token_of_one_sequence() -> None:
    """Three parallel choices get ten tokens each in the time in which one sequence gets ten."""
    pace = Pace()
    pace.begin("x", 0.0)
    pace.begin("y", 0.0)
    for second in range(1, 400):
        deliveries = [_create_delivery(1, "x", 10), _create_delivery(1, "y", 30, choices=3)]
        pace.observe(deliveries, float(second))

    assert 0.1 == pytest.approx(pace.iteration_s, rel=0.01)


def test_lease_without_a_known_start_gives_no_iteration_time() -> None:
    """The start of a lease of an earlier scheduler is unknown."""
    pace = Pace()
    pace.begin("x", 0.0)

    assert 7 == pace.observe([_create_delivery(7, "other")], 1.0)
    assert USUAL_ITERATION_S == pytest.approx(pace.iteration_s)
