"""Predictions for recorded coding sessions that the stage table has not seen: prefill and cost.

u is the number of prompt tokens that a turn computes if everything of the turn before is cached.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import StatisticsError, correlation, fmean

from justitia_ray.cli.text_table import text_table
from justitia_ray.core.own_contexts import OwnContexts
from justitia_ray.core.stages import MAXIMUM_STAGES, StageServed
from justitia_ray.cost import PrefillCost, kv_token_time
from justitia_ray.predictor.stages import StageTable, still_needed
from justitia_ray.sim.sessions.play import sessions_that_fit
from justitia_ray.sim.sessions.profiles import LongContextProfile
from justitia_ray.sim.sessions.trace import Session, Turn
from justitia_ray.units import KvTokenTime, Tokens
from scripts.bench.statistics import percentile

TURNS = (2, 5, 10, 20, 40)
"""Turns at whose submission costs are predicted."""
_CLASS = "agent"
_LAST_STAGE = MAXIMUM_STAGES - 1


@dataclass(slots=True)
class SessionErrors:
    """Prediction errors on held-out sessions, over all splits."""

    profile: str
    u_errors: list[float] = field(default_factory=list)
    """Error of the predicted number of computed prompt tokens, relative to the prompt, by turn."""
    ranks: dict[int, list[float]] = field(default_factory=dict)
    """Rank correlations of predicted and true KV token-time, by turn."""
    ranks_with_prefill: dict[int, list[float]] = field(default_factory=dict)
    """Rank correlations of predicted and true cost including prefill, by turn."""


@dataclass(frozen=True, slots=True)
class _Costs:
    """True and expected costs of a session's turns."""

    kv: tuple[KvTokenTime, ...]
    prefill: tuple[KvTokenTime, ...]
    expected_prefill: tuple[KvTokenTime, ...]


def measure_sessions(
    sessions: Sequence[Session], profile: LongContextProfile, sets: int, seed: int
) -> SessionErrors:
    """Predict the costs of held-out halves of the sessions in `sets` random splits."""
    fit = sessions_that_fit(sessions, profile)
    errors = SessionErrors(profile.name)
    for session in fit:
        errors.u_errors += _uncached_token_errors(session.turns)
    costs = {session.name: _session_costs(session.turns, profile.prefill_cost) for session in fit}
    for number in range(sets):
        random.Random(f"{seed}/{number}").shuffle(fit)
        half = len(fit) // 2
        table, ratio = _learn_stage_costs(fit[:half], costs)
        for turn in TURNS:
            held_out = [session for session in fit[half:] if len(session.turns) >= turn]
            kv, full = [], []
            for session in held_out:
                of = costs[session.name]
                predicted, with_prefill = _predict_session_cost(
                    table, ratio, session.turns, turn - 1, of
                )
                kv.append((predicted, sum(of.kv)))
                full.append((with_prefill, sum(of.kv) + sum(of.prefill)))
            errors.ranks.setdefault(turn, []).append(rank_correlation(kv))
            errors.ranks_with_prefill.setdefault(turn, []).append(rank_correlation(full))
    return errors


def computed_tokens(turns: Sequence[Turn]) -> list[Tokens]:
    """Return the prompt tokens that each turn computes: its prompt without the part it repeats."""
    found: list[Tokens] = []
    for place, turn in enumerate(turns):
        shared = _count_shared_tokens(turns[place - 1], turn) if place else 0
        found.append(turn.prompt_tokens - shared)
    return found


def expected_tokens(turns: Iterable[Turn]) -> list[Tokens]:
    """Return the prompt tokens that the scheduler expects each turn to compute."""
    own, found = OwnContexts(), []
    for turn in turns:
        continued = own.continued_by(turn.prompt_tokens)
        there = 0 if continued is None else min(continued.tokens, turn.prompt_tokens - 1)
        found.append(turn.prompt_tokens - there)
        context = own.begin(turn.prompt_tokens)
        context.tokens = turn.prompt_tokens + turn.output_tokens
    return found


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Spearman's rank correlation; 0 if all values of one side are equal.

    Equal values have the mean of their ranks.
    """
    one, other = (_ranks([pair[side] for pair in pairs]) for side in (0, 1))
    try:
        return correlation(one, other)
    except StatisticsError:  # with fewer than two pairs the correlation is undefined
        return 0.0


def session_table(found: Sequence[SessionErrors]) -> str:
    """Return a table of errors of computed tokens and of mean rank correlations over the splits."""
    rows = [["profile", "u off", "p90", "cost", *(f"turn {turn}" for turn in TURNS)]]
    for one in found:
        errors = [f"{percentile(one.u_errors, of):.2%}" for of in (50, 90)]
        for name, ranks in (("KV", one.ranks), ("with prefill", one.ranks_with_prefill)):
            means = [f"{fmean(ranks[turn]):.2f}" for turn in TURNS]
            rows.append([one.profile, *errors, name, *means])
    return text_table(rows, numbers_from=4)


def _uncached_token_errors(turns: Sequence[Turn]) -> list[float]:
    pairs = zip(expected_tokens(turns), computed_tokens(turns), turns, strict=True)
    return [abs(expected - true) / turn.prompt_tokens for expected, true, turn in pairs][1:]


def _count_shared_tokens(before: Turn, turn: Turn) -> Tokens:
    shared: Tokens = 0
    for (chain, end), (other, other_end) in zip(before.path, turn.path, strict=False):
        if chain is not other:
            break
        shared = min(end, other_end)
        if end != other_end:
            break
    return min(shared, turn.prompt_tokens - 1)


def _session_costs(turns: Sequence[Turn], cost: PrefillCost) -> _Costs:
    prompts = [turn.prompt_tokens for turn in turns]
    return _Costs(
        tuple(kv_token_time(turn.prompt_tokens, turn.output_tokens) for turn in turns),
        tuple(map(cost.of, computed_tokens(turns), prompts)),
        tuple(map(cost.of, expected_tokens(turns), prompts)),
    )


def _learn_stage_costs(
    sessions: Sequence[Session], costs: dict[str, _Costs]
) -> tuple[StageTable, float]:
    """Return the stage table and the ratio of prefill to KV token-time learned from sessions."""
    table, kv, prefill = StageTable(), 0.0, 0.0
    for session in sessions:
        table.observe_stages(_CLASS, _stages(session.turns))
        kv += sum(costs[session.name].kv)
        prefill += sum(costs[session.name].prefill)
    return table, prefill / kv


def _stages(turns: Sequence[Turn]) -> list[StageServed]:
    groups = [[turn] for turn in turns[:_LAST_STAGE]]
    if len(turns) > _LAST_STAGE:
        groups.append(list(turns[_LAST_STAGE:]))
    return [
        StageServed(
            len(group),
            len(group),
            sum(turn.prompt_tokens for turn in group),
            sum(turn.output_tokens for turn in group),
            sum(kv_token_time(turn.prompt_tokens, turn.output_tokens) for turn in group),
            max(turn.output_tokens for turn in group),
            0.0,
        )
        for group in groups
    ]


def _predict_session_cost(
    table: StageTable, ratio: float, turns: Sequence[Turn], place: int, costs: _Costs
) -> tuple[float, float]:
    """Return the predicted cost of a session at a turn, without prefill and with it."""
    prompt = turns[place].prompt_tokens
    expected = table.expect(_CLASS, place, prompt, None)
    assert expected is not None
    received = list(accumulate(costs.kv))[place - 1] if place else 0
    kv = received + still_needed(expected, expected.output_tokens, prompt, 1)
    known = sum(costs.prefill[:place]) + costs.expected_prefill[place]
    return kv, kv + max(ratio * kv, known)


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for place in order[start:end]:
            ranks[place] = (start + 1 + end) / 2
        start = end
    return ranks
