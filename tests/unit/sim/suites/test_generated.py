"""Generated runs against published statistics that the generator does not use."""

import random
import statistics
from itertools import pairwise

import pytest

from justitia_ray.cost import kv_token_time
from justitia_ray.sim.suites.application_runs import CLASSES, made_up_run
from justitia_ray.sim.suites.recorded import inferences_of
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference, checked_application

RUNS = 200

PUBLISHED = {
    "EV": (4, 1600, 154, 94),
    "FV": (2, 2275, 73, 85),
    "CC": (4, 1269, 625, 250),
    "KBQAV": (7, 3052, 587, 336),
    "ALFWI": (15, 28393, 225, 453),
    "CG": (1, 179, 161, 46),
    "PE": (3, 2955, 711, 746),
    "MRS": (24, 13953, 5407, 5547),
    "DM": (105, 278253, 48237, 140504),
}
"""Published medians of whole runs: inferences, prompt and output tokens, and cost."""


def drawn_runs(application_class: str, runs: int = RUNS) -> list[tuple[WorkloadInference, ...]]:
    rng = random.Random("generated")
    return [inferences_of(made_up_run(application_class, rng, samples=40)) for _ in range(runs)]


@pytest.mark.parametrize("application_class", PUBLISHED)
def test_generated_runs_are_as_large_as_recorded_ones(application_class: str) -> None:
    """Medians agree within a quarter, although lengths and fan-outs are drawn independently."""
    calls, prompt, output, kilo_cost = PUBLISHED[application_class]
    runs = drawn_runs(application_class, 60 if application_class == "DM" else RUNS)

    assert calls == pytest.approx(statistics.median(len(run) for run in runs), rel=0.25)
    assert prompt == pytest.approx(
        statistics.median(sum(i.prompt_tokens for i in run) for run in runs), rel=0.25
    )
    assert output == pytest.approx(
        statistics.median(sum(i.output_tokens for i in run) for run in runs), rel=0.25
    )
    cost = statistics.median(
        sum(kv_token_time(i.prompt_tokens, i.output_tokens) for i in run) for run in runs
    )
    assert kilo_cost == pytest.approx(cost / 1000, rel=0.25)


@pytest.mark.parametrize("application_class", CLASSES)
def test_generated_runs_are_acyclic_and_have_tokens(application_class: str) -> None:
    for run in drawn_runs(application_class):
        checked_application(WorkloadApplication("a", application_class, 0.0, run))


@pytest.mark.parametrize("application_class", ["FV", "ALFWI", "CG"])
def test_prompts_of_a_loop_repeat_the_conversation(application_class: str) -> None:
    """Each prompt contains the previous one, its output and the tool's answer."""
    for run in drawn_runs(application_class):
        for earlier, later in pairwise(run):
            assert later.prompt_tokens > earlier.prompt_tokens + earlier.output_tokens
            assert (earlier.inference_id,) == later.after
            assert later.delay_s > 0


def test_prompts_of_a_generated_merge_are_long_in_total() -> None:
    """All prompts of a merge contain the same documents, whose sizes differ by run.

    Recorded: 221,591 to 329,530 prompt tokens from the 10th to the 90th percentile, a factor of
    1.5. If each of 105 prompts were drawn independently, it would be 1.05.
    """
    totals = [sum(i.prompt_tokens for i in run) for run in drawn_runs("DM", 60)]

    deciles = statistics.quantiles(totals, n=10)
    assert deciles[8] / deciles[0] == pytest.approx(1.5, abs=0.2)
