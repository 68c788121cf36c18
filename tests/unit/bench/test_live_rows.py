"""A recorded play as a workload, as result rows and as history: small plays worked out by hand."""

from justitia_ray.bench.live_rows import as_history, as_result, as_workload
from justitia_ray.core.stages import StageServed
from tests.unit.bench.live_made_up import application, inference

# Opened at 1.0; two side by side from 1.25, ends at 2 and 3; tool time of 0.5; one from 3.5 to 5.
TWO_STAGES = application(
    4,
    1.0,
    [
        inference(3.5, 5.0, (300, 20)),
        inference(1.25, 3.0, (200, 5)),
        inference(1.25, 2.0, (100, 10)),
    ],
)


def test_inference_follows_those_that_had_ended_and_tool_time_is_what_passed_since() -> None:
    """The simulator must not start a stage before the one it waited for, nor without the tool."""
    [workload] = as_workload([TWO_STAGES])

    assert [(), (), ("0", "1")] == [i.after for i in workload.inferences]
    assert [0.25, 0.25, 0.5] == [i.delay_s for i in workload.inferences]
    assert [(100, 10), (200, 5), (300, 20)] == [
        (i.prompt_tokens, i.output_tokens) for i in workload.inferences
    ]
    assert ("a004", 1.0, "KBQAV") == (
        workload.application_id,
        workload.arrived_at_s,
        workload.application_class,
    )
    workload.check()


def test_only_the_stage_before_is_followed() -> None:
    """A third stage follows the second; to name the first again says nothing."""
    rows = [inference(0, 1), inference(1.5, 2), inference(1.5, 2.5), inference(3, 4)]
    [workload] = as_workload([application(0, 0.0, rows)])

    assert [(), ("0",), ("0",), ("1", "2")] == [i.after for i in workload.inferences]


def test_latency_of_a_call_is_put_before_each_submission() -> None:
    """The simulator has no way from agent to engine and back; sequences of calls pay it often."""
    [workload] = as_workload([TWO_STAGES], call_latency_s=0.125)

    assert [0.375, 0.375, 0.625] == [i.delay_s for i in workload.inferences]


def test_application_that_failed_is_not_simulated() -> None:
    """What it would have taken is not known."""
    failed = application(5, 0.0, [inference(0, 1)], error="broken")

    assert [] == as_workload([failed])
    assert [] == as_history([failed])


def test_rows_are_those_of_result_files() -> None:
    """So that a live run is summarised as a simulated one is."""
    failed = application(5, 0.5, [inference(1.0, 9.0)], error="broken")
    result = as_result([TWO_STAGES, failed], 0.75, 3)

    whole, broken = result.applications
    assert (4.0, 5.0, "finished") == (whole.jct_s, whole.finished_at_s, whole.outcome)
    assert (None, "failed") == (broken.jct_s, broken.outcome)
    assert (100 * 10 + 55) + (200 * 5 + 15) + (300 * 20 + 210) == whole.kv_token_time
    assert (4.5, 0.75, 3) == (result.makespan_s, result.kv_utilization, result.preemptions)
    assert [3, 1] == [
        sum(i.application_id == name for i in result.inferences) for name in ("a004", "a005")
    ]


def test_wait_gives_the_instant_of_the_lease() -> None:
    """The profile is fitted on the time under the lease."""
    waited = application(0, 0.0, [inference(1.0, 9.0, waited_s=2.5)])

    assert 3.5 == as_result([waited], None, 0).inferences[0].dispatched_at_s


def test_history_has_the_stages_as_the_service_would_have_learned_them() -> None:
    """Charges are raised by what is known of stages: the service's and the simulator's alike."""
    [observation] = as_history([TWO_STAGES])

    assert (
        StageServed(2, 2, 300, 15, 1055.0 + 1015.0),
        StageServed(1, 1, 300, 20, 6210.0),
    ) == observation.stages
    assert (8280.0, 3, 35) == (
        observation.sample.kv_token_time,
        observation.sample.inferences,
        observation.sample.output_tokens,
    )
    assert observation.sample.features is None
