"""Runs made up from the measured spreads of a class's stages."""

import random
from collections.abc import Sequence

from justitia_ray.workloads.recorded import RecordedStage
from justitia_ray.workloads.stages import Stage


def made_up_stages(
    stages: Sequence[Stage], rng: random.Random, *, prompt_z: float | None = None
) -> tuple[RecordedStage, ...]:
    """Make up a run.

    Args:
        stages: The stages of its class.
        rng: Draws fan-outs, lengths and gaps.
        prompt_z: Where in their spreads all prompts are, see `Spread.at`: they hold one document.
            None: each prompt is drawn by itself.
    """
    run: list[RecordedStage] = []
    for stage in stages:
        for name in _rounds(stage, rng):
            size = len(run[-1].calls) if stage.fan_out is None else stage.fan_out.draw(rng)
            calls = tuple(
                (
                    round(
                        stage.prompt_tokens.draw(rng)
                        if prompt_z is None
                        else stage.prompt_tokens.at(prompt_z)
                    ),
                    round(stage.output_tokens.draw(rng)),
                )
                for _ in range(max(1, round(size)))
            )
            run.append(RecordedStage(name, calls, stage.gap_s.draw(rng) if stage.gap_s else 0.0))
    return tuple(run)


def _rounds(stage: Stage, rng: random.Random) -> list[str]:
    if not stage.round_weights:
        return [stage.name]
    [rounds] = rng.choices(range(len(stage.round_weights)), stage.round_weights)
    return [f"{stage.name}_{i}" for i in range(1, rounds + 1)]
