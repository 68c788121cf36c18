"""Comparison of expected with true start times of waiting calls on a live service."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from justitia_ray.core.calibration import Quantiles
from justitia_ray.errors import JustitiaError
from justitia_ray.lab.outlook import PredictedStart, Score, by_last_hour, score
from justitia_ray.units import Seconds, Tokens

ITERATION_S: Seconds = 0.005
"""Iteration time of the engine, a sixth of the paper's: minutes of waiting become about 10 s."""
LENGTHS: tuple[Tokens, ...] = (40, 120, 400)
"""Output lengths of the classes, chosen with equal probability."""
PROMPT: tuple[int, ...] = tuple(range(10))
HORIZONS: tuple[tuple[str, Seconds, Seconds], ...] = (
    ("up to 1 s ahead", 0.0, 1.0),
    ("1 to 5 s", 1.0, 5.0),
    ("5 to 20 s", 5.0, 20.0),
    ("more than 20 s", 20.0, float("inf")),
)
"""Bins of the report, by how far ahead the start is expected: (name, lower, upper bound)."""
_ASKS_AFTER_S: Seconds = 0.02
"""Seconds from a call to its first status query, when its application is known."""
_ASKS_AGAIN_S: Seconds = 0.25
_LATER = 1.5


@dataclass(frozen=True, slots=True)
class Cell:
    """Test case: an engine short of memory or of seats, and calls that keep it short."""

    name: str
    about: str
    fake: Mapping[str, float]
    """Settings of the fake engine."""
    gap_s: Seconds
    """Mean time between two arrivals, about what the engine needs for one call, in seconds."""


MEMORY = Cell(
    "memory",
    "1,000 tokens of KV, 64 seats",
    {"iteration_s": ITERATION_S, "max_num_seqs": 64, "kv_tokens": 1_000, "max_model_len": 1_000},
    0.21,
)
SEATS = Cell(
    "seats",
    "4 seats, KV that is never short",
    {"iteration_s": ITERATION_S, "max_num_seqs": 4, "kv_tokens": 64_000, "max_model_len": 1_000},
    0.22,
)
CELLS = {cell.name: cell for cell in (MEMORY, SEATS)}


async def play(
    http: httpx.AsyncClient, model: str, cell: Cell, calls: int, seed: int, prefix: str = ""
) -> list[PredictedStart]:
    """Send calls, query their expected starts while they wait, and return expected and true starts.

    Args:
        http: A client of the application.
        model: Its model.
        cell: The engine that it has.
        calls: How many; each is an application of its own.
        seed: Of lengths and arrivals.
        prefix: Of the applications' names.

    Raises:
        JustitiaError: If a call fails.
    """
    rng = random.Random(seed)
    told: list[PredictedStart] = []
    began_at = time.monotonic()

    async def call_and_query(name: str, tokens: Tokens) -> None:
        head = {
            "x-justitia-application": name,
            "x-justitia-class": f"of-{tokens}",
            "x-justitia-final": "true",
        }
        body = {"model": model, "prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True}
        sent_at = time.monotonic()
        answering = asyncio.create_task(http.post("/v1/completions", json=body, headers=head))
        asked = [one async for one in _query_expected_starts(http, name, answering)]
        answer = await answering
        if answer.status_code != 200:
            raise JustitiaError(f"a call failed: {answer.status_code}, {answer.text[:200]}")
        wait_s = float(answer.headers["x-justitia-waited-s"])
        told.extend(
            PredictedStart(
                name,
                f"of-{tokens}",
                sent_at - began_at + waited_s,
                waited_s if number else 0.0,
                True,
                said,
                max(0.0, wait_s - waited_s),
            )
            for number, (waited_s, said) in enumerate(asked)
        )

    async with asyncio.TaskGroup() as group:
        for number in range(calls):
            await asyncio.sleep(rng.expovariate(1 / cell.gap_s))
            group.create_task(call_and_query(f"{prefix}{cell.name}-{number}", rng.choice(LENGTHS)))
    return sorted(told, key=lambda one: one.at)


async def _query_expected_starts(
    http: httpx.AsyncClient, name: str, answering: "asyncio.Task[httpx.Response]"
) -> AsyncIterator[tuple[Seconds, Quantiles]]:
    """Yield (seconds that a call has waited, its expected start by the scheduler's clock).

    The scheduler's clock excludes the network time of the query.
    """
    pause_s = _ASKS_AFTER_S
    while True:
        await asyncio.wait({answering}, timeout=pause_s)
        if answering.done():
            return
        answer = await http.get(f"/v1/applications/{name}")
        if answer.status_code != 200:
            pause_s = _ASKS_AGAIN_S
            continue  # The scheduler does not know the application yet, or it has ended.
        view = answer.json()
        expected, waited_s = view["outlook"]["expected_start_s"], view["age_s"]
        if expected is None:
            return
        pause_s = max(_ASKS_AGAIN_S, (_LATER - 1) * waited_s)
        yield waited_s, Quantiles(**expected)


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """Errors of expected starts, beside those of a baseline from the last hour's waiting times."""

    name: str
    own: Score
    by_hour: Score

    @property
    def pinball_ratio(self) -> float:
        """Pinball loss of the expected starts, divided by that of the last hour's waiting times."""
        return self.own.pinball_s / self.by_hour.pinball_s if self.by_hour.pinball_s else 1.0

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            **self.own._asdict(),
            "covered_by_hour": self.by_hour.covered,
            "pinball_by_hour_s": self.by_hour.pinball_s,
        }


def score_rows(told: Sequence[PredictedStart]) -> list[ScoreRow]:
    """Return the scores of all expected starts, and of each bin that is not empty.

    Args:
        told: As `play` returns it, all with what came.
    """
    pairs = [
        (one.expected, hour, one.started_s)
        for one, hour in zip(told, by_last_hour(told), strict=True)
        if one.started_s is not None
    ]
    found = []
    for name, above, upto in (("all", -1.0, float("inf")), *HORIZONS):
        within = [(said, hour, came) for said, hour, came in pairs if above < said.p50 <= upto]
        own = score((said, came) for said, _, came in within)
        by_hour = score((hour, came) for _, hour, came in within)
        if own is not None and by_hour is not None:
            found.append(ScoreRow(name, own, by_hour))
    return found


def table(scored: Sequence[ScoreRow]) -> str:
    """Return the scores as a Markdown table."""
    lines = [
        "| said | told | p10 to p90 | before | after | by the last hour | pinball loss, s | by the"
        " last hour | ratio | median error of p50, s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.name} | {row.own.tellings:,} | {row.own.covered:.0%} | {row.own.early:.0%}"
        f" | {row.own.late:.0%} | {row.by_hour.covered:.0%} | {row.own.pinball_s:.3f}"
        f" | {row.by_hour.pinball_s:.3f} | {row.pinball_ratio:.2f}"
        f" | {row.own.median_error_s:.2f} |"
        for row in scored
    ]
    return "\n".join(lines)
