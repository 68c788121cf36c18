"""Gittins ranks on learned stages, the order of Hermes (arXiv 2506.14851), re-implemented.

Hermes learns the demand of an application's stages from earlier runs, and serves applications in
the order of their Gittins rank: the least, over all amounts of service d, of the expected service
up to d over the chance that the application ends within d. The rank is computed again at each stage
(here: each turn). Its warm start of backends is not implemented, because all replicas are warm.

The sessions of the run itself are used as the earlier runs, which favours this scheduler. Hermes
knows the kind of each application. The recorded sessions are all of one kind, so that they may be
distinguished by the length of the first prompt, rounded to a power of two.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from justitia_ray.sim.sessions.arm import SessionArm, Start, TurnCall
from justitia_ray.sim.sessions.profiles import LongContextProfile
from justitia_ray.sim.sessions.replica import SessionReplica
from justitia_ray.sim.sessions.rivals.lmetric import LMetricArm
from justitia_ray.sim.sessions.rivals.pinned import PinnedArm
from justitia_ray.sim.sessions.trace import Session
from justitia_ray.units import Seconds

_Kind: TypeAlias = tuple[str, int]
"""Application class; with the length of the first prompt where that counts, otherwise 0."""

_PER_SECOND = 1_000
"""Factor from a rank in seconds to an engine's priority, which is a whole number."""


class GittinsArm(SessionArm):
    """Engines serve waiting turns by the Gittins ranks of their sessions.

    Args:
        replicas: The replicas.
        sessions: All sessions of the run, used as the earlier runs.
        by: Condition of a rank beside the kind: the stage of the turn (`stage`), the stage and the
            length of the first prompt (`length`), or the service received (`age`).
        placed: Placement, `lmetric` or `pinned`; Hermes has none of its own.
    """

    def __init__(
        self,
        replicas: Sequence[SessionReplica],
        sessions: Sequence[Session],
        by: Literal["stage", "length", "age"] = "stage",
        placed: Literal["lmetric", "pinned"] = "lmetric",
    ) -> None:
        self._by = by
        kind = LMetricArm if placed == "lmetric" else PinnedArm
        self._placer: SessionArm = kind(replicas, sessions)
        profile = replicas[0].profile
        self._demands = {session.name: solo_turn_times_s(session, profile) for session in sessions}
        self._stages = {session.name: session.stages for session in sessions}
        kinds: dict[_Kind, list[list[Seconds]]] = {}
        for session in sessions:
            kinds.setdefault(self._length_class(session), []).append(self._stage_demands_s(session))
        self._gittins_ranks = {kind: _gittins_ranks(runs) for kind, runs in kinds.items()}
        """Rank at each stage, by kind of session."""
        self._totals = {kind: sorted(map(sum, runs)) for kind, runs in kinds.items()}
        """Service of each earlier run in seconds, by kind of session."""
        self._ages: dict[str, Seconds] = {}

    def open(self, session: Session, now: Seconds) -> None:
        self._ages[session.name] = 0.0
        self._placer.open(session, now)

    def submit(self, call: TurnCall, now: Seconds) -> Iterable[Start]:
        """Start a turn with its session's present Gittins rank as its priority."""
        if self._by == "age":
            rank_s = self._age_rank_s(call)
        else:
            stage = self._stages[call.session.name][call.place]
            rank_s = self._gittins_ranks[self._length_class(call.session)][stage]
        priority = round(_PER_SECOND * rank_s)
        return [start._replace(priority=priority) for start in self._placer.submit(call, now)]

    def finish(
        self, replica: SessionReplica, calls: Sequence[TurnCall], now: Seconds
    ) -> Iterable[Start]:
        """Count the service of ended turns."""
        for call in calls:
            self._ages[call.session.name] += self._demands[call.session.name][call.place]
        return self._placer.finish(replica, calls, now)

    def close(self, session: Session, now: Seconds) -> Iterable[Start]:
        del self._ages[session.name]
        return self._placer.close(session, now)

    def _length_class(self, session: Session) -> _Kind:
        by_length = self._by == "length"
        return session.kind, session.turns[0].prompt_tokens.bit_length() if by_length else 0

    def _stage_demands_s(self, session: Session) -> list[Seconds]:
        stages = self._stages[session.name]
        sums = [0.0] * (max(stages) + 1)
        for stage, demand_s in zip(stages, self._demands[session.name], strict=True):
            sums[stage] += demand_s
        return sums

    def _age_rank_s(self, call: TurnCall) -> Seconds:
        age_s = self._ages[call.session.name]
        totals = self._totals[self._length_class(call.session)]
        longer = totals[bisect_right(totals, age_s) :]
        if not longer:  # the session has received more service than any earlier run
            return age_s
        return gittins_rank([total_s - age_s for total_s in longer])


def gittins_rank(remaining: Sequence[float]) -> float:
    """Return the Gittins rank, the least E[min(X, d)] / P(X <= d) over all d.

    Args:
        remaining: Equally likely values of the remaining service, ascending, above 0.
    """
    best, passed = float("inf"), 0.0
    for place, value in enumerate(remaining):
        passed += value
        later = len(remaining) - place - 1
        best = min(best, (passed + later * value) / (place + 1))
    return best


def solo_turn_times_s(session: Session, profile: LongContextProfile) -> list[Seconds]:
    """Return the time that each turn of a session takes alone, with its context in the cache."""
    return [
        profile.solo_turn_s(
            turn.prompt_tokens,
            turn.output_tokens,
            max(1, turn.prompt_tokens - turn.continued_tokens),
        )
        for turn in session.turns
    ]


def _gittins_ranks(runs: Iterable[Sequence[Seconds]]) -> list[float]:
    return [gittins_rank(sorted(remaining)) for remaining in remaining_by_stage(runs)]


def remaining_by_stage(runs: Iterable[Sequence[Seconds]]) -> list[list[Seconds]]:
    """Return the service that earlier sessions still received from each turn on.

    Args:
        runs: Service of each stage of each run.
    """
    stages: list[list[Seconds]] = []
    for demands in runs:
        left_s = 0.0
        for place in reversed(range(len(demands))):
            left_s += demands[place]
            while len(stages) <= place:
                stages.append([])
            stages[place].append(left_s)
    return stages
