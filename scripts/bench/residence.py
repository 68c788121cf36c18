"""Costs of an iteration and of a call, fitted on the times of calls at replicas under load.

For a unary call only its replica and its interval there are recorded. The interval contains the
computation of its prompt, one iteration per output token, and the replica's work before and after.
It is modelled as

latency + Σ over its iterations (base + per_sequence · running + per_context_token · context) + Σ
over prompts computed meanwhile (prefill_base + per_prefill_token · prompt tokens) + hold_up · calls
that arrived at or ended on any replica meanwhile,

where the concurrent calls on the replica follow from the other intervals, and its own prompt is
among those computed. A call's tokens are spread evenly over its interval; a prompt is computed when
its call begins. The last term exists because engines without their own cores wait for the processes
that deliver calls and answers. The coefficients follow by non-negative least squares on relative
errors.

`regression` does the same for streams, whose first tokens show when decoding began.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from justitia_ray.errors import ConfigError
from justitia_ray.sim.calibration.regression import Floats, integrals, solve_not_negative
from justitia_ray.sim.engine_profile import IterationCost
from justitia_ray.units import ReplicaId, Seconds, Tokens

_LEAST_CALLS = 30
"""Smallest number of calls to which seven coefficients are fitted."""

_LEAST_ITERATION_S: Seconds = 1e-5
"""Least time of an iteration; an engine with iterations of zero time cannot be simulated."""


@dataclass(frozen=True, slots=True)
class CallAtReplica:
    """Times of an answered call at its replica, in seconds on one clock."""

    replica: ReplicaId
    arrived_at_s: Seconds
    finished_at_s: Seconds
    prompt_tokens: Tokens
    output_tokens: Tokens


@dataclass(frozen=True, slots=True)
class ResidenceFit:
    """Fitted costs of iterations and calls, and the remaining error."""

    cost: IterationCost
    call_latency_s: Seconds
    """Seconds of a call at its replica outside the engine's iterations."""
    hold_up_s: Seconds
    """Seconds for which a call blocks every engine on arrival, and again at its end."""
    residual: float
    """Root mean square relative error of a call's time at its replica."""


def fit_residence(plays: Sequence[Sequence[CallAtReplica]]) -> ResidenceFit:
    """Fit the costs of an engine iteration and of a call to the times of calls at replicas.

    Equal plays give equal costs.

    Args:
        plays: Each the calls of all replicas of one service while all of them were busy. Plays
            whose batches differ tell more.

    Raises:
        ConfigError: If there are fewer than 30 that took time.
    """
    taken = [
        [c for c in calls if c.finished_at_s > c.arrived_at_s and c.output_tokens > 0]
        for calls in plays
    ]
    if (count := sum(map(len, taken))) < _LEAST_CALLS:
        raise ConfigError(
            f"a profile is fitted on at least {_LEAST_CALLS} calls that took time, got {count}"
        )
    rows = np.concatenate([_rows_of_play(calls) for calls in taken if calls])
    gram, target = rows.T @ rows / len(rows), rows.sum(axis=0) / len(rows)
    found = solve_not_negative(gram, target)
    latency_s, base_s, sequence_s, context_s, prefill_base_s, prefill_s, hold_up_s = (
        float(value) for value in found
    )
    cost = IterationCost(
        base_s=max(base_s, _LEAST_ITERATION_S),
        per_sequence_s=sequence_s,
        per_context_token_s=context_s,
        per_prefill_token_s=prefill_s,
        prefill_base_s=prefill_base_s,
    )
    residual = math.sqrt(float(np.mean((1 - rows @ found) ** 2)))
    return ResidenceFit(cost, latency_s, hold_up_s, residual)


def _rows_of_play(calls: Sequence[CallAtReplica]) -> Floats:
    """Return the regression rows `[n, 7]` of the calls of one run."""
    replicas = sorted({call.replica for call in calls})
    by_replica = [[c for c in calls if c.replica == name] for name in replicas]
    passed = np.sort([t for c in calls for t in (c.arrived_at_s, c.finished_at_s)])
    return np.concatenate([_rows(own, passed) for own in by_replica])


def _rows(calls: Sequence[CallAtReplica], passed: Floats) -> Floats:
    """Return the regression rows `[n, 7]` of the calls of one replica.

    Args:
        calls: Of one replica.
        passed: When calls came to any replica or ended on one, in order.
    """
    start = np.array([c.arrived_at_s for c in calls])
    end = np.array([c.finished_at_s for c in calls])
    prompt = np.array([c.prompt_tokens for c in calls], dtype=np.float64)
    made = np.array([c.output_tokens for c in calls], dtype=np.float64)
    running, context = integrals(start, end, prompt, made)
    order = np.argsort(start, kind="stable")
    begun = start[order]
    tokens = np.concatenate([[0.0], np.cumsum(prompt[order])])
    first, last = np.searchsorted(begun, start, "left"), np.searchsorted(begun, end, "left")
    share = made / (end - start)
    columns = [
        np.ones(len(calls)),
        made,
        running * share,
        context * share,
        last - first,
        tokens[last] - tokens[first],
        np.searchsorted(passed, end, "left") - np.searchsorted(passed, start, "left"),
    ]
    rows: Floats = np.column_stack(columns) / (end - start)[:, None]
    return rows
