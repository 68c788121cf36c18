"""The mixed suite as a live load: its mix, its lengths, and the same load for the simulator."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.sim.suites import SuiteOptions, build_suite
from justitia_ray.sim.suites.live_loads import (
    WORDS_PER_TINY_TOKEN,
    nine_class_plan,
    planned_application,
)
from justitia_ray.sim.suites.load_plan import PlannedApplication
from justitia_ray.sim.suites.papers import MIXES
from justitia_ray.sim.workload import WorkloadApplication, checked_application
from tests.dry_run import dry_run
from tests.unit.sim.data_directory import write_lines

OF_A_HUNDRED = {
    "CC": 22, "KBQAV": 22, "ALFWI": 22, "EV": 3, "FV": 3, "PE": 13, "SC": 13, "DM": 1, "MRS": 1
}  # fmt: skip
TEXT = "Some text of a few words. Four boxes of 12 are 4 * 12 = 48."
Load = list[PlannedApplication]
Draw = Callable[..., Load]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data directory with three inputs per class and no recorded runs."""
    directory = tmp_path_factory.mktemp("data")
    for name in OF_A_HUNDRED:
        lines = ({"id": f"{name}-{i}", "input": f"{TEXT} {i}"} for i in range(3))
        write_lines(directory / "apps" / f"{name}.jsonl", *lines)
    return directory


@pytest.fixture(scope="module")
def draw_load(data_dir: Path) -> Draw:
    def drawn_load(count: int = 100, **options: Any) -> Load:
        return nine_class_plan(data_dir, 1, count, **({"window_s": 50.0} | options))

    return drawn_load


@pytest.fixture(scope="module")
def hundred_applications(draw_load: Draw) -> Load:
    return draw_load()


def test_hundred_applications_have_the_papers_mix(hundred_applications: Load) -> None:
    assert OF_A_HUNDRED == MIXES["paper"]
    assert OF_A_HUNDRED == Counter(planned.application_class for planned in hundred_applications)


def test_arrivals_fill_a_window_or_follow_a_given_list(draw_load: Draw) -> None:
    """Arrival times of a trace are used unchanged."""
    instants = [float(number) for number in range(10)]
    given = draw_load(10, arrivals=instants)

    assert instants == [planned.arrived_at_s for planned in given]


def test_planned_lengths_fit_the_context_with_unchanged_ratios(
    hundred_applications: Load,
) -> None:
    """All lengths are cut by one factor."""
    worst, cost = 0, Counter[str]()
    for planned in hundred_applications:
        for stage in planned.lengths.stages.values():
            for call in stage.calls:
                worst = max(worst, round(call.prompt_words * 3.4) + call.output_tokens)
                cost[planned.application_class] += call.output_tokens * (
                    round(call.prompt_words / WORDS_PER_TINY_TOKEN) + call.output_tokens // 2
                )
    assert worst <= 2_048 - 64
    # whole recorded runs: DM 140,504, MRS 5,547, CC 250 thousand token·iterations
    mean = {name: cost[name] / OF_A_HUNDRED[name] for name in cost}
    assert 200 <= mean["DM"] / mean["CC"] <= 1200
    assert 5 <= mean["MRS"] / mean["CC"] <= 80


async def test_simulator_gets_the_load_of_the_live_agents(hundred_applications: Load) -> None:
    """The workload file has every inference of the live agents, with its predecessors."""
    for planned in two_of_each_class(hundred_applications):
        calls = await dry_run(planned, lambda text: len(text))
        application = planned_application(planned, "a")

        checked_application(application)
        assert planned.arrived_at_s == application.arrived_at_s
        assert {f"{call.stage}/{call.index}": call.output_tokens for call in calls} == {
            inference.inference_id: inference.output_tokens for inference in application.inferences
        }


def test_simulated_subtasks_wait_like_live_subtasks(hundred_applications: Load) -> None:
    """The tool time of a subtask delays only the subtasks that need it."""
    for planned in applications_of_class(hundred_applications, "PE"):
        file = planned_application(planned, "a")
        after = {i.inference_id: set(i.after) for i in file.inferences}
        tools = sum(subtask.exec_s for subtask in planned.lengths.subtasks)

        assert set() == after["task_planning/0"]
        assert after["response/0"]
        # generated plans are chains: all tool time lies between the plan and the response
        assert tools == pytest.approx(sum(i.delay_s for i in file.inferences), abs=1e-4)


def test_suite_nine_class_live_is_the_load_of_bench_live(
    hundred_applications: Load, data_dir: Path
) -> None:
    """`justitia workload --suite nine-class-live` writes the load of `scripts/bench_live`."""
    options = SuiteOptions(count=100, window_s=50.0, seed=1, data_dir=data_dir, arrivals="poisson")
    suite = build_suite("nine-class-live", options)

    def shapes_of(applications: list[WorkloadApplication]) -> list[tuple[str, int]]:
        return [(a.application_class, len(a.inferences)) for a in applications]

    assert shapes_of(suite) == shapes_of(
        [planned_application(p, "a") for p in hundred_applications]
    )
    assert max(a.arrived_at_s for a in suite) <= 50.0


def applications_of_class(hundred_applications: Load, name: str) -> Load:
    return [planned for planned in hundred_applications if planned.application_class == name]


def two_of_each_class(hundred_applications: Load) -> Load:
    """Return two applications of each class, or one where the mix has only one."""
    return [
        planned
        for name in OF_A_HUNDRED
        for planned in applications_of_class(hundred_applications, name)[:2]
    ]
