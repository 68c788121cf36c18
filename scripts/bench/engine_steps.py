"""Iteration times of an engine by new tokens, context and batch, measured over HTTP.

Calls go to an idle vLLM server with prefix caching on. Cached tokens are not computed again, so a
call repeated with more output differs only by decode iterations.
"""

import asyncio
import csv
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from justitia_ray.cli.text_table import text_table
from justitia_ray.units import Seconds, Tokens
from scripts.bench.load import CallFailed, Target

_FIRST_TOKEN_ID, _LAST_TOKEN_ID = 100, 2000


@dataclass(frozen=True, slots=True)
class StepGrid:
    """Prompt lengths, contexts and batches to measure."""

    prompts: tuple[Tokens, ...] = (64, 256, 1_024, 4_096, 16_384, 32_768)
    """Lengths of uncached prompts, sent one at a time."""
    contexts: tuple[Tokens, ...] = (1_024, 8_192, 32_768)
    """Lengths of cached contexts that a prompt extends."""
    added: tuple[Tokens, ...] = (64, 512, 2_048)
    decodes: tuple[tuple[int, Tokens], ...] = (
        (1, 256),
        (1, 8_192),
        (1, 32_768),
        (8, 256),
        (8, 4_096),
        (8, 12_288),
        (32, 256),
        (32, 2_048),
        (64, 1_024),
        (128, 256),
    )
    """Batches to decode: (number of sequences, context of each)."""
    decoded: Tokens = 64
    """Tokens that each sequence decodes."""
    repeats: int = 2


@dataclass(frozen=True, slots=True)
class StepRow:
    """Measured iteration times of one setting."""

    kind: str
    """Kind of measurement by the cached part of the prompt: `prefill`, `extend`, `cached` or
    `decode`.
    """
    repeat: int
    sequences: int
    context_tokens: Tokens
    """Context of each sequence: cached tokens, or for `decode` the tokens before the first output.
    """
    new_tokens: Tokens
    steps: int
    """Number of decode iterations; 0 if the engine chose the number."""
    seconds: Seconds
    """Seconds from sending to the last answer; for `decode` minus the time of a one-token output.
    """
    cached_tokens: Tokens
    """Cached tokens of all sequences, from the answers' usage."""


async def measure_steps(target: Target, model: str, grid: StepGrid, seed: int) -> list[StepRow]:
    probe = _EngineProbe(target, model, random.Random(seed))
    await probe.time_prompts([probe.random_prompt(64)], 8)  # the first call compiles
    rows: list[StepRow] = []
    for repeat in range(grid.repeats):
        for tokens in grid.prompts:
            prompt = probe.random_prompt(tokens)
            seconds, cached = await probe.time_prompts([prompt], 1)
            rows.append(StepRow("prefill", repeat, 1, 0, tokens, 0, seconds, cached))
            seconds, cached = await probe.time_prompts([prompt], 1)
            rows.append(StepRow("cached", repeat, 1, cached, tokens - cached, 0, seconds, cached))
        for context in grid.contexts:
            prompt = probe.random_prompt(context)
            await probe.time_prompts([prompt], 1)
            for tokens in grid.added:
                seconds, cached = await probe.time_prompts(
                    [prompt + probe.random_prompt(tokens)], 1
                )
                new = context + tokens - cached
                rows.append(StepRow("extend", repeat, 1, cached, new, 0, seconds, cached))
        for sequences, context in grid.decodes:
            prompts = [probe.random_prompt(context) for _ in range(sequences)]
            await probe.time_prompts(prompts, 1)
            short, _ = await probe.time_prompts(prompts, 1)
            long, cached = await probe.time_prompts(prompts, 1 + grid.decoded)
            rows.append(
                StepRow("decode", repeat, sequences, context, 1, grid.decoded, long - short, cached)
            )
    return rows


class _EngineProbe:
    """Client that sends calls with exact token counts."""

    def __init__(self, target: Target, model: str, rng: random.Random) -> None:
        self._target = target
        self._model = model
        self._rng = rng

    def random_prompt(self, tokens: Tokens) -> list[int]:
        """Return a prompt of random tokens that is not in the prefix cache."""
        return self._rng.choices(range(_FIRST_TOKEN_ID, _LAST_TOKEN_ID + 1), k=tokens)

    async def time_prompts(
        self, prompts: Sequence[list[int]], output_tokens: Tokens
    ) -> tuple[Seconds, Tokens]:
        """Send all prompts at once; return the time to the last answer, and the cached tokens."""
        bodies = [
            json.dumps(
                {
                    "model": self._model,
                    "prompt": prompt,
                    "max_tokens": output_tokens,
                    "ignore_eos": True,
                    "temperature": 0.0,
                }
            ).encode()
            for prompt in prompts
        ]
        began_at = time.perf_counter()
        cached = await asyncio.gather(*(self._post_completion(body) for body in bodies))
        return time.perf_counter() - began_at, sum(cached)

    async def _post_completion(self, body: bytes) -> Tokens:
        async with self._target.open() as connection:
            reply = await connection.post(self._target.completions, body)
        if reply.status != 200:
            raise CallFailed(f"status {reply.status}: {reply.body[:500]!r}")
        details = json.loads(reply.body)["usage"].get("prompt_tokens_details") or {}
        cached: Tokens = details.get("cached_tokens") or 0
        return cached


def write_steps(file: Path, rows: Sequence[StepRow]) -> None:
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(field.name for field in fields(StepRow))
        for row in rows:
            writer.writerow(
                round(value, 6) if isinstance(value, float) else value for value in astuple(row)
            )


def steps_table(rows: Sequence[StepRow]) -> str:
    """Return a table of medians in ms: of the whole call, for `decode` per iteration."""
    kinds: dict[tuple[str, int, Tokens, Tokens], list[float]] = {}
    for row in rows:
        key = (row.kind, row.sequences, row.context_tokens, row.new_tokens)
        kinds.setdefault(key, []).append(1e3 * row.seconds / max(1, row.steps))
    lines = [("kind", "sequences", "context", "new", "ms", "new tokens/s")]
    for (kind, sequences, context, new), ms in kinds.items():
        middle = statistics.median(ms)
        rate = f"{1e3 * sequences * new / middle:.0f}" if middle > 0 else ""
        lines.append((kind, str(sequences), str(context), str(new), f"{middle:.2f}", rate))
    return text_table(lines, numbers_from=1)
