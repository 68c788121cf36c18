"""The console's figures of a recorded run, against the engines' own counters."""

import pytest

from justitia_ray.protocol.console import Bar, BarKind
from justitia_ray.sim.settings import RunSettings
from tests.harness.console.recorded import (
    RecordedRun,
    constant_engine,
    nine_class_applications,
    record_run,
)

REPLICAS = 2


@pytest.fixture(scope="module")
def recorded_run() -> RecordedRun:
    """Return a recorded run of 30 applications of the nine classes on two engines under load."""
    return record_run(
        nine_class_applications(30), RunSettings(constant_engine(), replicas=REPLICAS), ("t1",)
    )


@pytest.mark.slow
def test_recorded_kv_usage_and_running_calls_match_the_engines(recorded_run: RecordedRun) -> None:
    for frame, counters in zip(recorded_run.whole[None], recorded_run.counters, strict=True):
        leased = {lane.replica_id: lane.leased_kv_tokens for lane in frame.replicas}
        running = {lane.replica_id: lane.leases for lane in frame.replicas}
        assert leased == counters.used_kv_tokens
        assert running == counters.running
        assert frame.strip.leased_kv_tokens == sum(counters.used_kv_tokens.values())
    assert max(sum(one.running.values()) for one in recorded_run.counters) > 20


def test_current_bars_of_a_replica_add_up_to_the_kv_of_its_engine(
    recorded_run: RecordedRun,
) -> None:
    for frame, counters in zip(recorded_run.whole[None], recorded_run.counters, strict=True):
        heights = dict.fromkeys(counters.used_kv_tokens, 0)
        for bar in frame.bars:
            if bar.kind is BarKind.RUN and bar.end is None:
                heights[bar.replica_id] += bar.kv_tokens
        assert heights == counters.used_kv_tokens


def test_area_of_all_console_bars_equals_the_kv_usage_of_the_engines(
    recorded_run: RecordedRun,
) -> None:
    """Bar heights between two frames are estimates with an error of up to 5 %."""
    bars: dict[int, Bar] = {}
    for frame in recorded_run.frames[None]:
        bars |= {bar.id: bar for bar in frame.bars}
    areas = dict.fromkeys(recorded_run.engine_kv_token_s, 0.0)
    for bar in bars.values():
        if bar.kind is BarKind.RUN:
            assert bar.end is not None
            areas[bar.replica_id] += bar.kv_tokens * (bar.end - bar.start)

    assert areas == pytest.approx(recorded_run.engine_kv_token_s, rel=0.05)


def test_recorded_tokens_and_times_of_each_call_match_the_engines(
    recorded_run: RecordedRun,
) -> None:
    told = {
        (name, call.inference_id): call
        for name, timeline in recorded_run.timelines.items()
        for call in timeline.calls
    }
    assert len(told) == len(recorded_run.result.inferences)
    for row in recorded_run.result.inferences:
        call = told[row.application_id, row.inference_id]
        assert (call.prompt_tokens, call.output_tokens) == (row.prompt_tokens, row.output_tokens)
        assert (call.started_at, call.ended_at) == (row.dispatched_at_s, row.finished_at_s)
        assert call.replica_id == str(row.replica)


def test_recorded_tokens_of_each_application_match_the_engines(
    recorded_run: RecordedRun,
) -> None:
    made: dict[str, int] = {}
    for row in recorded_run.result.inferences:
        made[row.application_id] = made.get(row.application_id, 0) + row.output_tokens

    assert {name: one.output_tokens for name, one in recorded_run.timelines.items()} == made


def test_recorded_queue_and_counts_match_the_workload(recorded_run: RecordedRun) -> None:
    ends = {one.application_id: one.finished_at_s for one in recorded_run.result.applications}
    for frame in recorded_run.whole[None][1:]:
        live = sum(
            one.arrived_at_s < frame.at < (ends[one.application_id] or frame.at)
            for one in recorded_run.result.applications
        )
        assert frame.own.applications == live


def test_tenant_sees_only_its_own_console_bars(recorded_run: RecordedRun) -> None:
    own = {one.application_id for one in recorded_run.result.applications if one.tenant == "t1"}
    seen = {bar.application for frame in recorded_run.frames["t1"] for bar in frame.bars}

    assert seen == own
