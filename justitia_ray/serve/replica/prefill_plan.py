"""Measure the cost of computing prompts on a replica's engine, before it takes leases.

The measurement makes some dozen calls to the idle engine: prompts of three lengths, each alone, and
decoding with little and with much context, in rounds until no time gets shorter. The first steps of
real work cannot replace it: the batches of one load are often alike, so that the effects of new
tokens, context and the number of sequences cannot be separated. The difference of two calls that
differ in one length leaves out the time that a call takes besides its steps.
"""

import asyncio
import json
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing

from justitia_ray import __version__
from justitia_ray.core.prefill_costs import MeasuredPrefill
from justitia_ray.observability.log_events import log_event
from justitia_ray.protocol.engine import Engine, EngineCall, EngineCapacity, ResponseHead
from justitia_ray.protocol.generation_bodies import COMPLETIONS
from justitia_ray.serve.replica.step_times import DecodeTime, PromptTime, fit_prefill_cost
from justitia_ray.units import Seconds, Tokens

logger = logging.getLogger("ray.serve")  # Serve adds the replica

_LONGEST: Tokens = 16_384
"""Maximum length of a measured prompt in tokens, long enough to show the cost of attention."""
_LEAST: Tokens = 64
"""Length in tokens below which even the longest measured prompt takes no measurable time."""
_TIMES_LONGER = 4
"""Ratio of each measured prompt length to the previous length."""
_LENGTHS_USED = 3
"""Number of prompt lengths that the fit of the prefill cost uses, the longest ones."""
_LONGEST_CALL_S: Seconds = 2.0
"""Maximum expected seconds of a measured prompt; longer prompts are left out."""
_DECODED = 16
"""Number of decode steps in each measurement of decoding."""
_ROUNDS = 8
"""Maximum number of measurements of each call. The shortest time counts, because interference only
adds time.
"""
_SHORTER = 0.99
"""A time must be below this multiple of the shortest time so far to count as shorter."""
_BUDGET_S: Seconds = 10.0
"""Seconds after which no measurement of the prefill cost is repeated."""
_GIVEN_UP_AFTER_S: Seconds = 60.0
_FIRST_TOKEN_ID, _LAST_TOKEN_ID = 10, 250
"""Range of the prompts' token ids, which even the smallest vocabularies have."""


class _Refused(Exception):
    """The engine answered a measured call with another status than 200."""


async def measure_prefill(
    engine: Engine, capacity: EngineCapacity, model: str
) -> MeasuredPrefill | None:
    """Measure the cost of computing prompts on an engine; None, after a log line, if it fails.

    Takes about `_BUDGET_S` at most, `_GIVEN_UP_AFTER_S` if the engine is very slow.

    Args:
        engine: A started engine that runs nothing.
        capacity: Its capacity.
        model: Name of the model for its calls.

    Raises:
        EngineError: If the engine died.
    """
    plan = _MeasurementPlan(engine, capacity, model)
    reason = "the engine generates no text, or its context is too short"
    cost = None
    if plan.lengths and COMPLETIONS in engine.paths():
        reason = "the times contradict each other"
        try:
            async with asyncio.timeout(_GIVEN_UP_AFTER_S):
                prompts, decodes = await plan.run()
            cost = fit_prefill_cost(capacity.kv_tokens, prompts, decodes)
        except _Refused as error:
            reason = str(error)
        except TimeoutError:
            reason = f"the calls took more than {_GIVEN_UP_AFTER_S:g} s"
    if cost is None:
        log_event(logger, logging.WARNING, "prefill.not_measured", reason=reason)
        return None
    return MeasuredPrefill(cost, __version__)


class _MeasurementPlan:
    """Calls of one measurement, with random prompts that are not in the prefix cache."""

    def __init__(self, engine: Engine, capacity: EngineCapacity, model: str) -> None:
        self._engine = engine
        self._capacity = capacity
        self._model = model
        self._random = random.Random()
        self._now: Callable[[], Seconds] = asyncio.get_running_loop().time
        self._until = self._now() + _BUDGET_S
        self._calls = 0
        # Two of the longest prompts and their outputs may take at most half of the KV memory.
        length = min(_LONGEST, capacity.kv_tokens // 4, capacity.max_model_len - _DECODED - 2)
        self.lengths: list[Tokens] = []
        """Lengths of the measured prompts in tokens, ascending; empty: no length is measurable."""
        while length >= _LEAST or (self.lengths and length >= _LEAST // _TIMES_LONGER):
            self.lengths.insert(0, length)
            length //= _TIMES_LONGER

    async def run(self) -> tuple[list[PromptTime], list[DecodeTime]]:
        """Return the shortest times of prompts and of decoding iterations, in ascending order."""
        shortest = self.lengths[0]
        await self._call_time([self._random_prompt(shortest)], 2)  # the first call may compile
        prompts: dict[Tokens, Seconds] = {}
        for length in self.lengths:
            prompts[length] = await self._prompt_time(length)
            if _TIMES_LONGER * prompts[length] > _LONGEST_CALL_S and len(prompts) > 1:
                break
        used = [*prompts][-_LENGTHS_USED:]
        longest, distinct, choices = used[-1], 1, 1
        if self._capacity.caches_prefixes:
            distinct = min(2, self._capacity.max_num_seqs)
            choices = self._capacity.kv_tokens // (2 * distinct * longest)
            choices = max(1, min(choices, self._capacity.max_num_seqs // distinct))
        plans = [([shortest], 1), ([longest] * distinct, choices)]
        decodes = [await self._decode_times(*plan) for plan in plans]
        for _ in range(_ROUNDS - 1):
            is_shorter = False
            for length in used:
                if self._now() < self._until:
                    before, seconds = prompts[length], await self._prompt_time(length)
                    is_shorter |= seconds < _SHORTER * before
                    prompts[length] = min(before, seconds)
            for number, plan in enumerate(plans):
                if self._now() < self._until:
                    short_s, long_s = await self._decode_times(*plan)
                    least = decodes[number]
                    is_shorter |= short_s < _SHORTER * least[0] or long_s < _SHORTER * least[1]
                    decodes[number] = min(least[0], short_s), min(least[1], long_s)
            if not is_shorter:
                break
        times = [
            DecodeTime(
                choices * sum(length + _DECODED // 2 for length in lengths),
                (long_s - short_s) / _DECODED,
            )
            for (lengths, choices), (short_s, long_s) in zip(plans, decodes, strict=True)
        ]
        return [PromptTime(length, prompts[length]) for length in used], times

    async def _decode_times(
        self, lengths: Sequence[Tokens], choices: int
    ) -> tuple[Seconds, Seconds]:
        """Return the times of calls with 1 and with 1 + `_DECODED` output tokens in each sequence.

        Several prompts are used, because some engines would read a beginning that all sequences
        share only once.
        """
        prompts = [self._random_prompt(length) for length in lengths]
        if self._capacity.caches_prefixes:
            await self._call_time(prompts, 1, choices)
        short_s = await self._call_time(prompts, 1, choices)
        return short_s, await self._call_time(prompts, 1 + _DECODED, choices)

    async def _prompt_time(self, length: Tokens) -> Seconds:
        return await self._call_time([self._random_prompt(length)], 1)

    def _random_prompt(self, tokens: Tokens) -> list[int]:
        return self._random.choices(range(_FIRST_TOKEN_ID, _LAST_TOKEN_ID + 1), k=tokens)

    async def _call_time(
        self, prompts: Sequence[list[int]], output_tokens: Tokens, choices: int = 1
    ) -> Seconds:
        """Run one call on the idle engine; return the time to its end.

        Raises:
            _Refused: If the answer has another status than 200.
        """
        self._calls += 1
        lease_id = f"prefill-plan-{self._calls}"
        body = json.dumps(
            {
                "model": self._model,
                "prompt": prompts,
                "n": choices,
                "max_tokens": output_tokens,
                "ignore_eos": True,
                "temperature": 1.0,
            }
        ).encode()
        call = EngineCall(lease_id, 0, COMPLETIONS, {"content-type": "application/json"}, body)
        began_at, parts = self._now(), []
        try:
            async with aclosing(self._engine.call(call)) as items:
                async for item in items:
                    if isinstance(item, ResponseHead):
                        status = item.status
                    else:
                        parts.append(item)
        finally:
            self._engine.release(lease_id)
        if status != 200:
            raise _Refused(f"status {status}: {b''.join(parts)[:200].decode(errors='replace')}")
        return self._now() - began_at
