"""The recorder's lines about agents' calls, on an in-memory service."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from justitia_ray.client import JustitiaClient
from justitia_ray.core.stages import StageServed
from justitia_ray.errors import ResponseError
from justitia_ray.predictor.observation import Sample
from justitia_ray.sim.results import Lateness
from justitia_ray.sim.workload import checked_application
from scripts.bench.live_records import (
    RecordedApplication,
    RecordedInference,
    Recorder,
    as_workload,
    to_observations,
    to_simulation_result,
)
from tests.harness.simulation.virtual_loop import run_virtually
from tests.unit.bench.live_fakes import LiveService, played_application, recorded_inference


def test_recorded_call_has_its_times_token_counts_and_prediction() -> None:
    service = LiveService()

    async def make_two_calls() -> RecordedApplication:
        recorder = Recorder(service, ".run-3", clock=asyncio.get_running_loop().time)
        async with (
            JustitiaClient(recorder) as client,
            client.application("MRS", input="text") as app,
        ):
            await app.chat("one", max_tokens=45)
            service.fails = "MRS.run-3"
            with suppress(ResponseError):
                await app.chat("two", max_tokens=45)
        return recorder.applications["app-0"]

    opened = run_virtually(make_two_calls())
    assert [("justitia", "MRS.run-3", "text")] == service.opened
    assert 5.0 == opened.predicted_kv_token_time
    ran_s: Any = pytest.approx(0.1)
    leased_s: Any = pytest.approx(0.105)
    assert [RecordedInference(0.0, ran_s, 20, 45, "r1", 0.0, ran_s, leased_s)] == opened.inferences


@pytest.mark.parametrize("loses_closes", [False, True])
def test_application_is_requested_under_its_tenant(loses_closes: bool) -> None:
    """The service hides an application from other tenants."""
    service = LiveService()
    service.loses_closes = loses_closes

    async def open_and_close() -> Recorder:
        recorder = Recorder(service, clock=asyncio.get_running_loop().time)
        async with (
            JustitiaClient(recorder, tenant="team-a") as client,
            client.application("MRS", input="text"),
        ):
            pass
        return recorder

    recorder = run_virtually(open_and_close())
    assert Lateness(0.5, 2.0) == recorder.applications["app-0"].lateness
    assert ({"app-0": "team-a"} if loses_closes else {}) == recorder.left_open


TWO_STAGES = played_application(
    4,
    1.0,
    [
        recorded_inference(3.5, 5.0, (300, 20)),
        recorded_inference(1.25, 3.0, (200, 5)),
        recorded_inference(1.25, 2.0, (100, 10)),
    ],
)


def test_replayed_inference_waits_for_its_predecessors_and_tool_time() -> None:
    """The simulator must start no stage before its predecessor has ended and the tool has run."""
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
    checked_application(workload)


def test_live_inference_depends_only_on_the_previous_stage() -> None:
    rows = [
        recorded_inference(0, 1),
        recorded_inference(1.5, 2),
        recorded_inference(1.5, 2.5),
        recorded_inference(3, 4),
    ]
    [workload] = as_workload([played_application(0, 0.0, rows)])

    assert [(), ("0",), ("0",), ("1", "2")] == [i.after for i in workload.inferences]


def test_live_rows_have_the_format_of_result_files() -> None:
    failed = played_application(5, 0.5, [recorded_inference(1.0, 9.0)], error="broken")
    result = to_simulation_result([TWO_STAGES, failed], 0.75, 3)

    assert [] == as_workload([failed])
    assert [] == to_observations([failed])
    whole, broken = result.applications
    assert (4.0, 5.0, "finished") == (whole.jct_s, whole.finished_at_s, whole.outcome)
    assert (None, "failed") == (broken.jct_s, broken.outcome)
    assert (100 * 10 + 55) + (200 * 5 + 15) + (300 * 20 + 210) == whole.kv_token_time
    assert (4.5, 0.75, 3) == (result.makespan_s, result.kv_utilization, result.preemptions)
    assert [3, 1] == [
        sum(i.application_id == name for i in result.inferences) for name in ("a004", "a005")
    ]


def test_history_of_a_live_run_has_the_stages_that_the_service_learns() -> None:
    [observation] = to_observations([TWO_STAGES])

    assert (
        StageServed(2, 2, 300, 15, 1055.0 + 1015.0, 10, 0.5),
        StageServed(1, 1, 300, 20, 6210.0, 20, 0.0),
    ) == observation.stages
    assert Sample(8280.0, 3, 35, None) == observation.sample
