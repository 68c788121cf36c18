"""Side calls of a conversation: how often timing identifies their application.

A client without session ids requests titles and the like in calls that repeat nothing of the
conversation. Only the API key and the recent calls under that key are known. Recorded sessions of
real agents, several under one key, show how often a guess from them is right.
"""

import gzip
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from justitia_ray.cli.text_table import text_table
from justitia_ray.errors import ConfigError
from justitia_ray.sim.sessions.trace import SESSIONS_FILE
from justitia_ray.units import Seconds

SESSIONS = (1, 2, 4, 8)
"""Numbers of concurrent sessions under one key."""
WITHIN_S = (0.1, 1.0, 5.0, 30.0)
_IDLE_S: Seconds = 600.0
"""Gap in seconds after which an application counts as ended; a later call starts another."""


class Timeline:
    """Begin and end times of an application's consecutive calls."""

    def __init__(self, calls: Sequence[tuple[Seconds, Seconds, bool]]) -> None:
        """Build a timeline from calls (begin, end, whether the call ends a turn)."""
        self._begins = [begin for begin, _, _ in calls]
        self._ends = [end for _, end, _ in calls]
        self.length_s = self._ends[-1]
        self.moments = {
            "session": (0.0,),
            "turn": tuple(end for _, end, ends_turn in calls if ends_turn),
        }

    def seconds_since_call(self, at: Seconds) -> Seconds:
        """Return the seconds since the last call in flight ended; infinite before the first."""
        last = bisect_right(self._begins, at) - 1
        return inf if last < 0 else max(0.0, at - self._ends[last])

    def since_s(self, at: Seconds) -> Seconds:
        """Return the seconds since the last begin or end of a call; infinite before the first."""
        last = bisect_right(self._begins, at) - 1
        if last < 0:
            return inf
        return at - (self._ends[last] if self._ends[last] <= at else self._begins[last])


@dataclass(frozen=True, slots=True)
class SideCallKind:
    """Kind of call that repeats nothing of a conversation, such as a call for a title."""

    name: str
    lags_s: tuple[Seconds, ...]
    """Seconds of these calls after the event that triggers them; negative is before it."""
    follows: str
    """Event that triggers these calls: `session` (its first call begins) or `turn` (a turn ends).
    """

    def trigger_times(self, timelines: Sequence[Timeline]) -> list[tuple[Timeline, Seconds]]:
        """Return (time, timeline) of each event that triggers a call of this kind."""
        return [(one, at) for one in timelines for at in one.moments[self.follows]]


KINDS = (
    # A session's first call also repeats nothing, but belongs to no open application.
    SideCallKind("first of a session", (-1e-6,), "session"),
    # Measured for OpenCode in `tests/e2e/harnesses`, where a header identifies the session.
    SideCallKind("title", (-0.25, -0.59, -0.98, -1.13, -1.39, -1.64), "session"),
    # Assumption: the client stores a memory of each turn by a side call.
    SideCallKind("after a turn", (0.02, 0.1, 0.5), "turn"),
)

Rule = tuple[str, Seconds]
"""Rule that assigns a call to an application by the times of the application's other calls."""
RULES: tuple[Rule, ...] = tuple(product(("only", "latest"), WITHIN_S))


@dataclass(frozen=True, slots=True)
class AssignedShares:
    """Shares of calls that a rule assigns, and assigns correctly."""

    joined: float
    right: float
    """Share of calls assigned to their own application."""

    def __str__(self) -> str:
        if not self.joined:
            return "none"
        return f"{self.right / self.joined:.1%} of {self.joined:.0%}"


def read_timelines(data_dir: Path) -> list[Timeline]:
    """Read the timelines of recorded sessions.

    Raises:
        ConfigError: If the directory has none that can be read.
    """
    path = data_dir / SESSIONS_FILE
    try:
        lines = gzip.decompress(path.read_bytes()).splitlines()
        return [found for line in lines for found in timelines_of(json.loads(line)["turns"])]
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def timelines_of(turns: Sequence[dict[str, Any]]) -> list[Timeline]:
    """Return the timelines of a session's turns; a long gap starts a new timeline."""
    calls: list[tuple[Seconds, Seconds, bool]] = []
    found = [calls]
    for turn in turns:
        gap_s = turn["gap_s"] or 0.0
        if calls and gap_s >= _IDLE_S:
            calls = []
            found.append(calls)
        begin = calls[-1][1] + gap_s if calls else 0.0
        calls.append((begin, begin + (turn["api_s"] or 0.0), turn["stop"] == "end_turn"))
    return [Timeline(one) for one in found if one and one[-1][1]]


def assigned_shares(
    timelines: Sequence[Timeline], kind: SideCallKind, sessions: int, draws: int = 5_000
) -> dict[Rule, AssignedShares]:
    """Return the shares of one kind's calls that each rule assigns, and assigns correctly.

    Args:
        timelines: Applications; the others are at a random moment of theirs when one has the call.
        kind: The kind of calls.
        sessions: Applications of one key at work at once.
        draws: Calls that are judged.
    """
    random = Random(f"{kind.name} {sessions}")
    places = kind.trigger_times(timelines)
    weights = [*accumulate(one.length_s for one in timelines)]
    joined: Counter[Rule] = Counter()
    right: Counter[Rule] = Counter()
    for _ in range(draws):
        own, moment = random.choice(places)
        at = moment + random.choice(kind.lags_s)
        others = random.choices(timelines, cum_weights=weights, k=sessions - 1)
        seen = [(own, at), *((one, random.uniform(0.0, one.length_s)) for one in others)]
        quiet = [one.seconds_since_call(now) for one, now in seen]
        since = [one.since_s(now) for one, now in seen]
        latest = min(since)
        for rule in RULES:
            name, within_s = rule
            if name == "only":
                near = [place for place, quiet_s in enumerate(quiet) if quiet_s <= within_s]
                joins, is_own = len(near) == 1, near == [0]
            else:
                joins, is_own = latest <= within_s, latest == since[0]
            joined[rule] += joins
            right[rule] += joins and is_own
    return {rule: AssignedShares(joined[rule] / draws, right[rule] / draws) for rule in RULES}


def mean_shares(judged: Sequence[tuple[int, AssignedShares]]) -> AssignedShares:
    """Return the mean over kinds of calls, weighted by each kind's number of calls."""
    calls = sum(number for number, _ in judged)
    return AssignedShares(
        sum(number * one.joined for number, one in judged) / calls,
        sum(number * one.right for number, one in judged) / calls,
    )


def session_rules_table(
    timelines: Sequence[Timeline], kinds: Sequence[SideCallKind] = KINDS, draws: int = 5_000
) -> str:
    """Return a table of each rule's results, by kind of call and number of sessions per key."""
    numbers = [len(kind.trigger_times(timelines)) for kind in kinds]
    found = [
        [assigned_shares(timelines, kind, count, draws) for count in SESSIONS] for kind in kinds
    ]
    rows = [["calls", "joins", "within s", *(f"{count} of a key" for count in SESSIONS)]]
    for rule in RULES:
        name, within_s = rule
        for kind, judged in zip(kinds, found, strict=True):
            rows.append([kind.name, name, f"{within_s:g}", *(str(one[rule]) for one in judged)])
        all_kinds = [
            mean_shares([(n, judged[rule]) for n, judged in zip(numbers, column, strict=True)])
            for column in zip(*found, strict=True)
        ]
        rows.append(["all", name, f"{within_s:g}", *map(str, all_kinds)])
    return text_table(rows, numbers_from=2)
