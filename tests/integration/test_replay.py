"""A workload file replayed on a live application with fake engines."""

import json
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.sim.replay import replay_workload
from justitia_ray.sim.result_files import read_results, write_results
from justitia_ray.sim.workload import read_workload
from tests.harness.service import Service

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_MAPS = 4


def _map_reduce_application(number: int) -> dict[str, Any]:
    """Return an application of four map calls, a tool of 50 ms and a reduce call."""
    maps = [
        {"inference_id": f"map-{k}", "prompt_tokens": 300 + k, "output_tokens": 10 + k, "after": []}
        for k in range(_MAPS)
    ]
    after = [one["inference_id"] for one in maps]
    reduce = {"inference_id": "reduce", "prompt_tokens": 900, "output_tokens": 20, "after": after}
    return {
        "application_id": f"replay-{number}",
        "application_class": "MRS",
        "tenant": f"t{number % 2}",
        "arrived_at_s": 0.05 * number,
        "input": "a text",
        "inferences": [*maps, reduce | {"delay_s": 0.05}],
    }


async def test_replayed_workload_keeps_token_lengths_and_dependencies(
    service: Service, tmp_path: Path
) -> None:
    """The engines' token counts equal the file's, so that the load is that of the simulation.

    Every reduce is submitted after the tool time that follows its last map. Nothing is left in the
    service, and the result files can be read back.
    """
    workload = tmp_path / "workload.jsonl"
    workload.write_text("".join(json.dumps(_map_reduce_application(n)) + "\n" for n in range(6)))
    applications = read_workload(workload)
    done = await replay_workload(service.url, applications, timeout_s=60.0)
    await service.until_idle()
    asked = [
        (a.application_id, i.inference_id, i.prompt_tokens, i.output_tokens)
        for a in applications
        for i in a.inferences
    ]
    rows = done.run.inferences

    assert () == done.failures
    assert (await service.status())["policy"] == done.policy
    assert asked == [
        (r.application_id, r.inference_id, r.prompt_tokens, r.output_tokens) for r in rows
    ]
    for row in rows:
        assert row.first_token_at_s is not None
        assert row.finished_at_s is not None
        assert row.submitted_at_s < row.first_token_at_s <= row.finished_at_s
    for first in range(0, len(rows), _MAPS + 1):
        *maps, reduce = rows[first : first + _MAPS + 1]
        assert max(row.finished_at_s or 0.0 for row in maps) + 0.05 <= reduce.submitted_at_s
    for application, planned in zip(done.run.applications, applications, strict=True):
        assert planned.cost() == application.kv_token_time
        assert "finished" == application.outcome
        assert application.virtual_finish_time is not None
    assert {a.application_id for a in applications} == set(done.run.lateness)
    assert done.run.kv_utilization is not None
    assert 0.0 < done.run.kv_utilization < 1.0
    write_results(tmp_path / "out", {done.policy: done.run}, {"seed": None})
    assert rows == read_results(tmp_path / "out").runs[done.policy].inferences
