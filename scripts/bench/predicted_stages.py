"""Predictions of held-out runs by the stage table: lengths, gaps, whether a turn follows."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean

from justitia_ray.cli.text_table import text_table
from justitia_ray.core.stages import StageServed
from justitia_ray.cost import kv_token_time
from justitia_ray.predictor.stages import StageTable
from justitia_ray.sim.predictions import stages_of
from justitia_ray.sim.suites.application_runs import DEFAULT_SAMPLES, deal_runs
from justitia_ray.sim.suites.recorded import load_runs
from justitia_ray.sim.workload import WorkloadInference

TRAINED_SHARE = 0.8
"""Share of a class's runs on which the stage table is trained; the others are predicted."""

Run = tuple[WorkloadInference, ...]


@dataclass(slots=True)
class StageErrors:
    """Prediction errors of one class over all splits, beside those of a simple baseline."""

    application_class: str
    lengths: list[float] = field(default_factory=list)
    """|predicted − true| output tokens of each inference."""
    lengths_of_class: list[float] = field(default_factory=list)
    true_lengths: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    """|predicted − true| seconds of each gap."""
    gaps_of_class: list[float] = field(default_factory=list)
    turns: list[bool] = field(default_factory=list)
    """Whether the table predicted correctly that another stage follows, for each stage reached."""
    turns_of_class: list[bool] = field(default_factory=list)


def measure_stages(
    data_dir: Path, classes: Sequence[str], sets: int, seed: int
) -> list[StageErrors]:
    """Predict held-out runs of each class in `sets` random splits.

    Raises:
        ConfigError: If the data directory lacks files or is wrong.
    """
    found = []
    for name in classes:
        errors = StageErrors(name)
        count = len(load_runs(data_dir, name))
        runs = [
            run.inferences
            for run in islice(deal_runs(name, seed, data_dir, DEFAULT_SAMPLES), count)
        ]
        for number in range(sets):
            random.Random(f"{seed}/{number}/{name}").shuffle(runs)
            split = round(TRAINED_SHARE * len(runs))
            add_errors(errors, runs[:split], runs[split:])
        found.append(errors)
    return found


def add_errors(errors: StageErrors, learned: Sequence[Run], held_out: Sequence[Run]) -> None:
    table, name = StageTable(), errors.application_class
    for run in learned:
        table.observe_stages(name, _served_inferences(run))
    mean_length = fmean(call.output_tokens for run in learned for call in run)
    known_gaps = [gap_s for run in learned for _, gap_s in stages_of(run)[:-1]]
    mean_gap_s = fmean(known_gaps) if known_gaps else 0.0
    goes_on = [len(stages_of(run)) - 1 for run in learned]
    usually = sum(goes_on) >= len(learned)  # the baseline is the most common answer
    for run in held_out:
        stages = stages_of(run)
        for at, (calls, gap_s) in enumerate(stages):
            for call in calls:
                expected = table.expect(name, at, call.prompt_tokens, None, len(calls))
                assert expected is not None
                errors.lengths.append(abs(expected.output_tokens - call.output_tokens))
                errors.lengths_of_class.append(abs(mean_length - call.output_tokens))
                errors.true_lengths.append(call.output_tokens)
            comes = at + 1 < len(stages)
            foretold = table.expected_stages(name, at)
            errors.turns.append((len(foretold) > 1) == comes)
            errors.turns_of_class.append(usually == comes)
            if comes:
                errors.gaps.append(abs((foretold[0].gap_s if foretold else mean_gap_s) - gap_s))
                errors.gaps_of_class.append(abs(mean_gap_s - gap_s))


def _served_inferences(run: Run) -> list[StageServed]:
    return [
        StageServed(
            len(calls),
            len(calls),
            sum(call.prompt_tokens for call in calls),
            sum(call.output_tokens for call in calls),
            sum(kv_token_time(call.prompt_tokens, call.output_tokens) for call in calls),
            max(call.output_tokens for call in calls),
            gap_s,
        )
        for calls, gap_s in stages_of(run)
    ]


def stage_table(found: Sequence[StageErrors]) -> str:
    """Return a table of errors by class, beside those of the class mean or most common answer."""
    head = ["class", "calls", "length off", "by class", "gaps", "gap off s", "by class"]
    rows = [[*head, "turn right", "by class"]]
    for one in found:
        mean = fmean(one.true_lengths)
        gaps = (
            [f"{fmean(one.gaps):.2f}", f"{fmean(one.gaps_of_class):.2f}"] if one.gaps else ["–"] * 2
        )
        rows.append(
            [
                one.application_class,
                f"{len(one.lengths)}",
                f"{fmean(one.lengths) / mean:.0%}",
                f"{fmean(one.lengths_of_class) / mean:.0%}",
                f"{len(one.gaps)}",
                *gaps,
                f"{fmean(one.turns):.0%}",
                f"{fmean(one.turns_of_class):.0%}",
            ]
        )
    return text_table(rows, numbers_from=1)
