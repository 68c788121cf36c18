"""A profile from measured runs: what an iteration costs, then the pace that the simulator needs.

The regression leaves out what it cannot see: that prefills and completions fall between
iterations, and that batches form otherwise in a simulation than they did. So all times are then
scaled by one factor, such that the simulated throughput of the runs errs by nothing in the
geometric mean. The rules of the engine are not fitted: they are those of the profile to start
from.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from justitia_ray.errors import ConfigError
from justitia_ray.sim.calibration.measured import MeasuredRun
from justitia_ray.sim.calibration.regression import Regression, fit_iterations
from justitia_ray.sim.engine_profile import EngineProfile, IterationCost
from justitia_ray.sim.validation import RunValidation, validate
from justitia_ray.units import Tokens

_PACES = (0.99, 1.0, 1.01)
"""Simulated throughput jumps by some 0.3 % with small changes of the times, as other batches form:
so the mean over three is set."""
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted profile, and how it errs on the runs that it was fitted on."""

    profile: EngineProfile
    regression: Regression
    runs: tuple[RunValidation, ...]


def calibrate(
    runs: Sequence[MeasuredRun], start: EngineProfile, added_prompt_tokens: Tokens = 0
) -> Calibration:
    """Fit the iteration costs of a profile; deterministic.

    Args:
        runs: At least one; none that predictions are to be tried on.
        start: Its name, memory and rules are kept, its costs and `speedup` are not.
        added_prompt_tokens: What the engine put before each prompt and the files do not count.

    Raises:
        ConfigError: If there is nothing to fit, or a request is larger than the KV memory.
    """
    if not runs:
        raise ConfigError("runs: a profile is fitted on at least one run, got none")
    regression = fit_iterations(runs, added_prompt_tokens)
    start = replace(start, iteration=regression.cost, speedup=1.0)
    logs = [
        math.log(run.tokens_per_s.simulated / run.tokens_per_s.measured)
        for pace in _PACES
        for run in validate(_at_pace(start, pace), runs, added_prompt_tokens)
    ]
    profile = _at_pace(start, math.exp(sum(logs) / len(logs)))
    profile = replace(profile, iteration=_rounded(profile.iteration))
    return Calibration(profile, regression, tuple(validate(profile, runs, added_prompt_tokens)))


def _at_pace(profile: EngineProfile, factor: float) -> EngineProfile:
    """Return the profile with all times multiplied."""
    return replace(profile, iteration=profile.iteration.scaled(factor))


def _rounded(cost: IterationCost) -> IterationCost:
    """Round to what the data say, so that the file is the same wherever it is fitted."""

    def rounded(value: float) -> float:
        return float(f"{value:.{_DIGITS}g}")

    return IterationCost(
        base_s=rounded(cost.base_s),
        per_sequence_s=rounded(cost.per_sequence_s),
        per_context_token_s=rounded(cost.per_context_token_s),
        per_prefill_token_s=rounded(cost.per_prefill_token_s),
        prefill_tile_tokens=cost.prefill_tile_tokens,
        prefill_base_s=rounded(cost.prefill_base_s),
    )
