"""The mixed suite as a live load: its mix, its lengths, and the same load for the simulator."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.sim.suites import SuiteOptions, build_suite
from justitia_ray.sim.suites.planned import planned_application
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.workloads.dry_run import dry_run, measured_words_per_token
from justitia_ray.workloads.load_plan import PlannedApplication
from justitia_ray.workloads.nine_class_load import (
    NINE_CLASS_MIX,
    WORDS_PER_TINY_TOKEN,
    NineClassLoad,
    nine_class_plan,
)

OF_A_HUNDRED = {
    "CC": 22, "KBQAV": 22, "ALFWI": 22, "EV": 3, "FV": 3, "PE": 13, "SC": 13, "DM": 1, "MRS": 1
}  # fmt: skip
TEXT = "Some text of a few words. Four boxes of 12 are 4 * 12 = 48."
Draw = Callable[..., NineClassLoad]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three inputs of each class, and no recorded runs."""
    directory = tmp_path_factory.mktemp("data")
    (directory / "apps").mkdir()
    for name in OF_A_HUNDRED:
        lines = [json.dumps({"id": f"{name}-{i}", "input": f"{TEXT} {i}"}) for i in range(3)]
        (directory / "apps" / f"{name}.jsonl").write_text("\n".join(lines))
    return directory


@pytest.fixture(scope="module")
def draw(data_dir: Path) -> Draw:
    """Draws loads on those."""

    def drawn(count: int = 100, **options: Any) -> NineClassLoad:
        return nine_class_plan(data_dir, 1, count, **({"window_s": 50.0} | options))

    return drawn


@pytest.fixture(scope="module")
def load(draw: Draw) -> NineClassLoad:
    """A deck."""
    return draw()


def test_a_hundred_applications_have_the_paper_s_mix(load: NineClassLoad) -> None:
    """72 small, 26 medium, 2 large."""
    assert OF_A_HUNDRED == dict(NINE_CLASS_MIX)
    assert OF_A_HUNDRED == Counter(planned.application_class for planned in load.applications)
    assert set(OF_A_HUNDRED) - {"DM"} == {p.application_class for p in load.warm_up}


def test_the_same_seed_draws_the_same_load(load: NineClassLoad, draw: Draw) -> None:
    """All policies, and the simulator, get one load."""
    assert load == draw()


def test_arrivals_are_of_a_window_or_given(draw: Draw) -> None:
    """The window is the mean of a Poisson process; a trace's instants are kept."""
    instants = [float(number) for number in range(10)]
    given = draw(10, window_s=None, arrivals=instants)

    assert instants == [planned.arrived_at_s for planned in given.applications]
    with pytest.raises(ConfigError, match="one of window_s and arrivals must be given"):
        draw(10, arrivals=instants)
    with pytest.raises(ConfigError, match="window_s must be a number > 0, got 0"):
        draw(10, window_s=0)
    with pytest.raises(ConfigError, match="context_tokens must leave prompts 100 words, got 256"):
        draw(10, context_tokens=256)


@pytest.mark.parametrize("context_tokens", [2_048, 4_096])
def test_what_is_planned_fits_the_context_and_keeps_its_shape(
    context_tokens: int, draw: Draw
) -> None:
    """All lengths are cut by one factor: a DM still costs hundreds of times what a CC does."""
    load = draw(context_tokens=context_tokens)

    assert context_tokens / 8192 == load.length_scale == load.gap_scale
    worst, cost = 0, Counter[str]()
    for planned in load.applications:
        for stage in planned.lengths.stages.values():
            for call in stage.calls:
                worst = max(worst, round(call.prompt_words * 3.4) + call.output_tokens)
                cost[planned.application_class] += call.output_tokens * (
                    round(call.prompt_words / WORDS_PER_TINY_TOKEN) + call.output_tokens // 2
                )
    assert worst <= context_tokens - 64
    # Whole recorded runs: DM 140,504, MRS 5,547, CC 250 thousand token·iterations.
    mean = {name: cost[name] / OF_A_HUNDRED[name] for name in cost}
    assert 200 <= mean["DM"] / mean["CC"] <= 1200
    assert 5 <= mean["MRS"] / mean["CC"] <= 80


async def test_a_dry_run_says_what_will_be_asked(load: NineClassLoad) -> None:
    """Inference by inference, with nothing waited for; a plan's gaps are minutes."""
    count = Counter[str]()
    async with asyncio.timeout(60):
        for planned in small(load):
            calls = await dry_run(planned, lambda text: len(text.split()))
            stages = {name: len(s.calls) for name, s in planned.lengths.stages.items()}
            assert stages == Counter(call.stage for call in calls)
            for call in calls:
                plan = planned.lengths.call(call.stage, call.index)
                assert plan.output_tokens == call.output_tokens
                count[planned.application_class] += 1
    assert set(OF_A_HUNDRED) == set(count)


async def test_words_per_token_are_measured(load: NineClassLoad) -> None:
    """By a model's own tokenizer: here one that makes two tokens of a word, and adds none."""
    ratio = await measured_words_per_token(small(load)[:3], lambda text: 2 * len(text.split()))

    assert 0.5 == ratio


async def test_the_simulator_gets_the_same_load(load: NineClassLoad) -> None:
    """One plan, two forms: every inference of the agent is in the file, with what it waits for."""
    for planned in small(load):
        calls = await dry_run(planned, lambda text: len(text))
        application = planned_application(planned, "a", calls=calls)

        application.check()
        assert planned.arrived_at_s == application.arrived_at_s
        assert {f"{call.stage}/{call.index}": call.prompt_tokens for call in calls} == {
            inference.inference_id: inference.prompt_tokens for inference in application.inferences
        }


def test_subtasks_wait_as_the_agent_has_them_wait(load: NineClassLoad) -> None:
    """PE's stages are a graph: what a subtask's tool takes delays those that need it."""
    for planned in of_class(load, "PE"):
        file = planned_application(planned, "a")
        after = {i.inference_id: set(i.after) for i in file.inferences}
        tools = sum(subtask.exec_s for subtask in planned.lengths.subtasks)

        assert set() == after["task_planning/0"]
        assert after["response/0"]
        # Made-up plans are chains: all tool time lies between the plan and the response.
        assert tools == pytest.approx(sum(i.delay_s for i in file.inferences), abs=1e-4)


def test_the_suite_is_that_load(load: NineClassLoad, data_dir: Path) -> None:
    """`justitia workload --suite nine-class-live` writes what `scripts/bench_live` plays."""
    options = SuiteOptions(count=100, window_s=50.0, seed=1, data_dir=data_dir, arrivals="poisson")
    suite = build_suite("nine-class-live", options)

    def shape(applications: list[WorkloadApplication]) -> list[tuple[str, int]]:
        return [(a.application_class, len(a.inferences)) for a in applications]

    assert shape(suite) == shape([planned_application(p, "a") for p in load.applications])
    assert max(a.arrived_at_s for a in suite) <= 50.0


def of_class(load: NineClassLoad, name: str) -> list[PlannedApplication]:
    return [planned for planned in load.applications if planned.application_class == name]


def small(load: NineClassLoad) -> list[PlannedApplication]:
    """Return two applications of each class, one where there is one."""
    return [planned for name in OF_A_HUNDRED for planned in of_class(load, name)[:2]]
