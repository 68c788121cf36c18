"""Costs of an iteration, from the times that requests decoded in parallel.

A request of d output tokens goes through d − 1 decode iterations after its first token. Their
duration is

    Σ over those iterations (base + per_sequence · running + per_context_token · context)
    + Σ over the prefills in between (prefill_base + per_prefill_token · prompt tokens)

All quantities are computed from the measured times alone: when each request ran, how many tokens it
held (tokens are produced evenly between the first and the last), and when prompts were computed
(requests whose first tokens come together). No schedule has to be simulated. So the coefficients
are fitted by least squares on relative errors. Runs differ in the speed of their machine (2 % on
the A10G runs). So each run has a factor of its own, with geometric mean 1, fitted alternately with
the coefficients, so that these differences are not attributed to the runs' loads.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from justitia_ray.errors import ConfigError
from justitia_ray.sim.calibration.measured import MeasuredRun, TimedRequest
from justitia_ray.sim.engine_profile import IterationCost
from justitia_ray.units import Seconds, Tokens

Floats = NDArray[np.float64]

TILES: tuple[Tokens, ...] = (1, 32, 64, 128, 256)
"""Tile sizes of a GPU that are tried: prefills are rounded up to a multiple of the size."""
_ROUNDS = 60
_FIELDS = (
    "base_s",
    "per_sequence_s",
    "per_context_token_s",
    "prefill_base_s",
    "per_prefill_token_s",
)
_NO_GRAM: Floats = np.zeros((len(_FIELDS), len(_FIELDS)))
_NO_SUM: Floats = np.zeros(len(_FIELDS))


@dataclass(frozen=True, slots=True)
class Regression:
    """Fitted cost of an engine's iteration, with the remaining error."""

    cost: IterationCost
    speeds: tuple[float, ...]
    residual: float
    """Root mean square relative error of the requests' decode times."""


@dataclass(frozen=True, slots=True)
class _Observations:
    decode_s: Floats
    quantities: Floats
    prefills: Floats
    prefill_tokens: dict[Tokens, Floats]


def fit_iterations(runs: Sequence[MeasuredRun], added_prompt_tokens: Tokens = 0) -> Regression:
    """Fit the cost of an iteration, with the tile size that leaves the least error.

    Args:
        runs: Measured runs. All runs have equal weight, whatever their numbers of requests.
        added_prompt_tokens: Tokens that the engine put before each prompt, not counted in the
            files.

    Raises:
        ConfigError: If a run has no request that decoded, or decoding and prefill cannot be
            separated.
    """
    observed = [_average_observations(run, added_prompt_tokens) for run in runs]
    fits = [_fit(observed, tile) for tile in TILES]
    return min(fits, key=lambda fit: (round(fit.residual, 6), fit.cost.prefill_tile_tokens))


def _fit(observed: Sequence[_Observations], tile: Tokens) -> Regression:
    """Fit the cost's coefficients and each run's speed in turn, by least squares."""
    grams, sums = zip(*(_normal_equations(o, tile) for o in observed), strict=True)
    speeds = np.ones(len(observed))
    coefficients = np.zeros(len(_FIELDS))
    for _ in range(_ROUNDS):
        gram = sum((s * s * g for s, g in zip(speeds, grams, strict=True)), _NO_GRAM)
        target = sum((s * b for s, b in zip(speeds, sums, strict=True)), _NO_SUM)
        coefficients = solve_not_negative(gram, target)
        speeds = np.array(
            [
                (b @ coefficients) / (coefficients @ g @ coefficients)
                for g, b in zip(grams, sums, strict=True)
            ]
        )
        speeds /= np.exp(np.log(speeds).mean())
    errors = [
        1 - 2 * s * (b @ coefficients) + s * s * (coefficients @ g @ coefficients)
        for s, g, b in zip(speeds, grams, sums, strict=True)
    ]
    residual = math.sqrt(max(0.0, sum(errors)) / len(errors))
    values = dict(zip(_FIELDS, (float(c) for c in coefficients), strict=True))
    cost = IterationCost(prefill_tile_tokens=tile, **values)
    return Regression(cost, tuple(float(s) for s in speeds), residual)


def _normal_equations(observed: _Observations, tile: Tokens) -> tuple[Floats, Floats]:
    """Return the normal equations of a least-squares fit to relative errors."""
    columns = (observed.quantities, observed.prefills, observed.prefill_tokens[tile])
    rows = np.column_stack(columns) / observed.decode_s[:, None]
    return rows.T @ rows / len(rows), rows.sum(axis=0) / len(rows)


def solve_not_negative(gram: Floats, target: Floats) -> Floats:
    """Solve for non-negative coefficients: drop the most negative one until none is negative."""
    scale = np.sqrt(np.diag(gram))
    kept = [column for column in range(len(target)) if scale[column] > 0]
    solution = np.zeros(len(target))
    while kept:
        unit = scale[kept]
        scaled = gram[np.ix_(kept, kept)] / np.outer(unit, unit)
        found = np.linalg.lstsq(scaled, target[kept] / unit, rcond=1e-12)[0]
        worst = int(found.argmin())
        if found[worst] >= 0:
            solution[kept] = found / unit
            break
        del kept[worst]
    return solution


def _average_observations(run: MeasuredRun, added: Tokens) -> _Observations:
    decoded = [
        r for r in run.requests if r.output_tokens > 1 and r.finished_at_s > r.first_token_at_s
    ]
    if not decoded:
        raise ConfigError(f"{run.name}: has no request that took time to decode")
    start = np.array([r.first_token_at_s for r in decoded])
    end = np.array([r.finished_at_s for r in decoded])
    prompt = np.array([r.prompt_tokens + added for r in decoded], dtype=np.float64)
    iterations = np.array([r.output_tokens - 1 for r in decoded], dtype=np.float64)
    running, context = integrals(start, end, prompt + 1, iterations)
    # The fit assumes that a request's iterations are equally long.
    share = iterations / (end - start)
    apart_s = float(np.median(1 / share)) / 2
    times, tokens = _find_prefills(run.requests, added, apart_s)
    after = np.searchsorted(times, start + apart_s, side="right")
    before = np.maximum(np.searchsorted(times, end, side="left"), after)
    prefill_tokens = {}
    for tile in TILES:
        summed = np.concatenate([[0.0], np.cumsum(np.ceil(tokens / tile) * tile)])
        prefill_tokens[tile] = summed[before] - summed[after]
    return _Observations(
        end - start,
        np.column_stack([iterations, running * share, context * share]),
        (before - after).astype(np.float64),
        prefill_tokens,
    )


def integrals(start: Floats, end: Floats, held: Floats, gained: Floats) -> tuple[Floats, Floats]:
    """Integrate the number of running sequences, and their tokens, over the time of each request.

    Args:
        start: Start of decoding of each request, `[n]`.
        end: End of each request.
        held: Tokens held at the start.
        gained: Tokens gained evenly until the end.

    Returns:
        Sequences·seconds and tokens·seconds, `[n]` each.
    """
    times = np.unique(np.concatenate([start, end]))
    at_start, at_end = np.searchsorted(times, start), np.searchsorted(times, end)
    rate = gained / (end - start)
    steps = np.diff(times)
    running = _sum_per_step(len(times), at_start, at_end, np.ones(len(start)))
    slope = _sum_per_step(len(times), at_start, at_end, rate)
    level = _sum_per_step(len(times), at_start, at_end, held - rate * start)
    middles = (times[:-1] + times[1:]) / 2
    sequences = np.concatenate([[0.0], np.cumsum(running[:-1] * steps)])
    tokens = np.concatenate([[0.0], np.cumsum((level[:-1] + slope[:-1] * middles) * steps)])
    return sequences[at_end] - sequences[at_start], tokens[at_end] - tokens[at_start]


def _sum_per_step(
    count: int, at_start: NDArray[np.intp], at_end: NDArray[np.intp], by: Floats
) -> Floats:
    changes = np.zeros(count)
    np.add.at(changes, at_start, by)
    np.add.at(changes, at_end, -by)
    return np.cumsum(changes)


def _find_prefills(
    requests: Sequence[TimedRequest], added: Tokens, apart_s: Seconds
) -> tuple[Floats, Floats]:
    """Find when each prefill ended, and how many prompt tokens it computed.

    First tokens less than `apart_s` after another belong to the same prefill.
    """
    times: list[Seconds] = []
    tokens: list[Tokens] = []
    latest = -np.inf
    for request in sorted(requests, key=attrgetter("first_token_at_s")):
        at = request.first_token_at_s
        if at - latest > apart_s:
            times.append(at)
            tokens.append(0)
        tokens[-1] += request.prompt_tokens + added
        latest = at
    return np.array(times), np.array(tokens, dtype=np.float64)
