"""Playing a load against an in-memory service, in virtual time."""

from dataclasses import replace

import pytest

from justitia_ray.client import JustitiaClient
from justitia_ray.lab.workloads.play import ApplicationRecord, play
from justitia_ray.sim.suites.load_plan import CallMade, LengthPlan, PlannedApplication
from justitia_ray.sim.suites.recorded import RecordedRun
from tests.harness.simulation.virtual_loop import run_virtually
from tests.unit.bench.live_fakes import LiveService


def _plan_application(number: int, text: str = "How many?", name: str = "SC") -> PlannedApplication:
    return PlannedApplication(
        number=number,
        application_class=name,
        item_id="x",
        text=text,
        tenant="t1",
        arrived_at_s=10.0 * number,
        lengths=LengthPlan().draw(name, "x", number),
    )


def _play_load(service: LiveService, *planned: PlannedApplication) -> list[ApplicationRecord]:
    async def play_all() -> list[ApplicationRecord]:
        async with JustitiaClient(service, model="tiny") as client:
            return await play(planned, client)

    return run_virtually(play_all())


def test_records_contain_the_outcome_of_each_application() -> None:
    planned = _plan_application(1)
    [record] = _play_load(LiveService(), planned)

    sizes = [planned.lengths.call("sample", index).output_tokens for index in range(5)]
    calls = [CallMade("sample", index, 20, size) for index, size in enumerate(sizes)]
    assert record.jct_s == pytest.approx(0.01 + 0.002 * max(sizes))
    assert calls == sorted(record.calls, key=lambda call: call.index)
    instants = (10.0, 10.0 + record.jct_s, record.jct_s)
    assert record == ApplicationRecord(
        *("app-0", "SC", "t1", *instants, "completed", 5, sum(sizes), None, record.calls)
    )


def test_completion_time_counts_from_the_planned_arrival() -> None:
    """A stalled load player must not make the service look faster."""
    late = replace(_plan_application(0), arrived_at_s=-3.0)

    [record] = _play_load(LiveService(), late)

    assert -3.0 == record.arrived_at_s
    assert record.finished_at_s > 0.0
    assert record.jct_s == record.finished_at_s + 3.0


@pytest.mark.parametrize(
    ("text", "application_id", "error"),
    [
        ("refused", None, "ResponseError: 400: refused"),
        ("fails", "app-0", "ResponseError: 500: broken"),
    ],
)
def test_failed_application_is_recorded_and_ends_no_other_application(
    text: str, application_id: str | None, error: str
) -> None:
    """One application must not cost an hour of load."""
    service = LiveService()
    service.refuses, service.fails = "refused", "KBQAV"

    failed, completed = _play_load(
        service, _plan_application(0, text, "KBQAV"), _plan_application(1)
    )

    outcome = (failed.outcome, failed.application_id, failed.error)
    assert ("failed", application_id, error) == outcome
    assert (failed.inferences, failed.output_tokens) == (0, 0)
    assert completed.outcome == "completed"
    assert service.cancelled == ([] if application_id is None else ["/v1/applications/app-0"])


def test_agent_that_raises_an_exception_is_recorded_as_failed() -> None:
    no_stage = replace(
        _plan_application(0),
        lengths=replace(_plan_application(0).lengths, run=RecordedRun(None, ())),
    )
    no_header = replace(_plan_application(1), tenant="\n")

    records = _play_load(LiveService(), no_stage, no_header, _plan_application(2))

    assert [record.outcome for record in records] == ["failed", "failed", "completed"]
    assert records[0].error == "KeyError: 'sample'"
    assert (records[1].error or "").startswith("RequestError: tenant travels in a header")
