"""The agent programs on the service with fake engines: recorded plans match planned ones."""

import pytest

from justitia_ray.client import JustitiaClient
from justitia_ray.lab.workloads.play import WORKLOADS, play
from justitia_ray.sim.suites.load_plan import LengthPlan, plan_load
from tests.dry_run import dry_run
from tests.harness.service import Service

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


async def test_every_example_agent_makes_its_planned_inferences(service: Service) -> None:
    """One application of each class runs, as long as a small model's context allows.

    The fake engine counts one token per word and four per message; with that count a dry run
    predicts what the service reports.
    """
    lengths = LengthPlan(length_scale=0.05, gap_scale=0.01, max_output_tokens=20, samples=5)
    load = plan_load(
        lengths,
        count=len(WORKLOADS),
        seed=1,
        mix=dict.fromkeys(WORKLOADS, 1),
        arrivals=[0.0] * len(WORKLOADS),
        dealt=True,
    )

    async with JustitiaClient.connect(service.url) as client:
        records = await play(load, client)

    assert [None] * len(WORKLOADS) == [record.error for record in records]
    assert sorted(WORKLOADS) == sorted(record.application_class for record in records)
    for planned, record in zip(load, records, strict=True):
        expected = await dry_run(planned, lambda text: len(text.split()) + 4)
        made = {(call.stage, call.index): call for call in record.calls}
        assert len(expected) == record.inferences == len(made)
        for call in expected:
            of_service = made[call.stage, call.index]
            assert call.output_tokens == of_service.output_tokens
            if call.stage in OF_THE_TEXT:
                assert call == of_service


OF_THE_TEXT = {
    "sample",
    "extract_claims",
    "generate_queries",
    "generate_summary",
    "task_planning",
    "generate_testcases",
    "generate_solutions",
    "extract_calculations",
    "generate_snippets",
    "generate_1",
    "thought_1",
    "turn_1",
    "code_generation_1",
}
"""Stages whose prompts do not quote earlier answers."""
