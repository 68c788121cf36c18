"""vLLM requests under a lease: their tokens, priority and replayed outputs.

vLLM's serving layer makes the chunks of a stream (text, tool calls, finish reason, usage) from the
outputs of the engine's client, and equal outputs give equal chunks. To continue a stream, the
outputs of the earlier attempt therefore pass through vLLM's own output processor again, as if the
engine had just produced them; this restores the processor's detokenizer, stop-string search and
counts. Then the request is sent to the engine with the earlier tokens appended to the prompt.

None of this is a stable API of vLLM; `tests/conformance` checks each release. The context variable
is defined here, in a module that is imported by name: Serve pickles a deployment class by value,
including every global of the class's own module.
"""

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from copy import copy
from dataclasses import replace
from typing import Any, Protocol

from justitia_ray.errors import EngineError, RequestError
from justitia_ray.protocol.engine import Hold, KeptKv, Output, Progress
from justitia_ray.serve.engines.cache_salts import CacheSalts
from justitia_ray.serve.engines.grammar_checks import GrammarChecks
from justitia_ray.serve.engines.prefills import Prefills
from justitia_ray.serve.engines.recomputations import Recomputations, RecomputedTokens
from justitia_ray.serve.engines.vllm_releases import retryable_error, validation_error
from justitia_ray.units import Seconds, Tokens

_NEEDS_WHOLE_OUTPUT = (
    "presence_penalty",
    "frequency_penalty",
    "structured_outputs",
    "bad_words",
    "thinking_token_budget",
    "repetition_detection",
    "trace_decode_token_ids",
    "extra_args",
)
"""Sampling parameters that depend on the generated tokens, which become part of the prompt when a
stream is continued. Some vLLM releases lack some of them.

`repetition_penalty` is not listed, because vLLM applies it to prompt and output tokens alike.
"""
_NEEDS_PROBABILITIES = (
    "logprobs",
    "logprob_token_ids",
    "prompt_logprobs",
    "prompt_logprob_token_ids",
)
"""Sampling parameters that request log probabilities. These are not kept when a stream is
continued.
"""


class StreamTape:
    """Records the outputs of a leased stream, and replays the outputs of an earlier attempt.

    Args:
        earlier: Outputs of the earlier attempt; empty if there was none.
    """

    def __init__(self, earlier: tuple[Output, ...]) -> None:
        self._earlier = earlier
        self._played: list[Any] = []
        """Outputs of an earlier attempt that vLLM's serving layer has not read yet."""
        self._outputs: list[Output] = []
        self._streams = 0
        self.obstacle = ""
        """Reason why another replica could not continue the stream; empty if one could."""
        self.has_ended = False
        """Whether the outputs of the earlier attempt were complete, so that nothing is left to
        generate.
        """

    def take_outputs(self) -> tuple[Output, ...]:
        """Return the outputs of the stream since the last call of this method."""
        outputs, self._outputs = self._outputs, []
        return tuple(outputs)

    def follow_outputs(self, outputs: AsyncGenerator[Any], params: Any) -> AsyncGenerator[Any]:
        """Return the generator of outputs that vLLM's serving layer reads in place of its engine's.

        Args:
            outputs: Outputs of the engine.
            params: vLLM's `SamplingParams`.
        """
        if params.output_kind.name != "DELTA":
            return outputs  # not a stream
        self._streams += 1
        self.obstacle = self.obstacle or _obstacle_to_continue(params)
        if self._streams > 1:
            self.obstacle = "it has more than one prompt"
        return outputs if self.obstacle and not self._earlier else self._follow_outputs(outputs)

    async def _follow_outputs(self, outputs: AsyncGenerator[Any]) -> AsyncGenerator[Any]:
        async with aclosing(outputs):
            async for output in outputs:
                for played in self._take_replayed_outputs():
                    yield played
                if not self.obstacle:
                    self._outputs.append(_fields_of_output(output))
                yield output
        for played in self._take_replayed_outputs():
            yield played

    def _take_replayed_outputs(self) -> list[Any]:
        played, self._played = self._played, []
        return played

    def play_earlier(self, request: Any, state: Any, output_processor: Any) -> None:
        """Advance a new vLLM sequence to the position at which the earlier attempt was cut.

        Args:
            request: vLLM's `EngineCoreRequest` before it is sent to the engine; modified.
            state: vLLM's `RequestState` of the request; modified.
            output_processor: vLLM's output processor, which holds the state.
        """
        if request.prompt_token_ids is None:
            self.obstacle = self.obstacle or "its prompt is not one of tokens"
        if not self._earlier:
            return
        # Without a queue, vLLM's output processor returns outputs one by one.
        queue, state.queue = state.queue, None
        tracing, output_processor.tracing_enabled = output_processor.tracing_enabled, False
        for output in self._earlier:
            made = output_processor.process_outputs(
                [_engine_output_from(request.request_id, output)]
            )
            self._played += made.request_outputs
        output_processor.tracing_enabled = tracing
        state.queue = queue
        state.is_prefilling = True
        _skip_tokens(request, state, [token for output in self._earlier for token in output.tokens])
        if self._earlier[-1].finish_reason is not None:
            from vllm.outputs import STREAM_FINISHED

            self.has_ended = True
            queue.put(STREAM_FINISHED)


def _skip_tokens(request: Any, state: Any, tokens: list[int]) -> None:
    """Append tokens to the engine's prompt that vLLM's frontend counts as output."""
    params = request.sampling_params.clone()
    params.max_tokens -= len(tokens)
    params.min_tokens = max(0, params.min_tokens - len(tokens))
    request.sampling_params = params
    # The list is copied, because vLLM's frontend keeps the old one as its prompt.
    request.prompt_token_ids = [*request.prompt_token_ids, *tokens]
    state.stats.num_generation_tokens = len(tokens)


def _fields_of_output(output: Any) -> Output:
    """Return the fields of a vLLM `RequestOutput` from which it can be rebuilt."""
    (completion,) = output.outputs
    return Output(tuple(completion.token_ids), completion.finish_reason, completion.stop_reason)


def _engine_output_from(request_id: str, output: Output) -> Any:
    """Return an `EngineCoreOutput` from which vLLM rebuilds a recorded output."""
    from vllm.v1.engine import EngineCoreOutput, FinishReason

    reason, stop = output.finish_reason, output.stop_reason
    # vLLM's output processor finds stop strings, not the engine.
    by_engine = reason is not None and not isinstance(stop, str)
    return EngineCoreOutput(
        request_id=request_id,
        new_token_ids=list(output.tokens),
        finish_reason=FinishReason[reason.upper()] if reason is not None and by_engine else None,
        stop_reason=stop if by_engine else None,
    )


def _obstacle_to_continue(params: Any) -> str:
    """Return why a stream with these sampling parameters cannot continue elsewhere, or ""."""
    if params.n > 1:
        return "it has more than one choice"
    for name in _NEEDS_WHOLE_OUTPUT:
        if getattr(params, name, None):
            return f"{name} needs to know what was generated before"
    for name in _NEEDS_PROBABILITIES:
        if getattr(params, name, None) is not None:
            return f"{name} of what was generated before are lost"
    if params.seed is not None and params.temperature > 0:
        return "with its seed it is to be repeatable; asked for again it is the same"
    return ""


class LeaseMeter:
    """Counts the tokens of all vLLM requests that run under one lease."""

    def __init__(
        self,
        priority: int,
        earlier: tuple[Output, ...] = (),
        tenant: str = "",
        prefills: Prefills | None = None,
        hold: Hold | None = None,
        recomputations: Recomputations | None = None,
    ) -> None:
        self.priority = priority
        self.tenant = tenant
        self.hold = hold
        self.tape = StreamTape(earlier)
        self._prefills = prefills
        self._recomputations = recomputations or Recomputations()
        self._recomputed: dict[str, RecomputedTokens] = {}
        """Recomputed tokens of sequences that were preempted, by request id."""
        self._sequences: dict[str, tuple[Tokens, Any]] = {}
        self._reading: dict[str, Any] = {}
        """vLLM's `RequestState` of sequences that had no token at the last check, by request id."""
        self._cached: dict[str, Tokens] = {}
        """Prompt tokens found in the prefix cache, of sequences that have a token, by request id.
        """
        self._read_once: dict[str, Any] = {}
        """vLLM's `RequestState` of prompts for which no token is generated, by request id."""

    def add_sequence(self, state: Any) -> None:
        """Start to count the tokens of a sequence, given vLLM's `RequestState`.

        Only the prompt's length and the statistics object are stored. vLLM updates that object, and
        drops the state on the last token and on an abort. A prompt for which nothing is generated
        has no such object; its state shows when it has been computed. From the first token on, the
        state contains the tokens found in the prefix cache.
        """
        self._reading[state.request_id] = state
        if state.detokenizer is None and state.logprobs_processor is None:
            self._read_once[state.request_id] = state
            return
        self._sequences[state.request_id] = (state.prompt_len, state.stats)
        if self._prefills is not None:
            self._prefills.add_sequence(state.request_id, self.priority, time.monotonic())

    def read_progress(self) -> Progress:
        """Return the tokens used under the lease so far; n choices of a prompt count it n times."""
        self._store_cached_counts()
        is_known = self._cached and not self._reading
        return Progress(
            prompt_tokens=sum(prompt for prompt, _ in self._sequences.values())
            + sum(state.prompt_len for state in self._read_once.values()),
            output_tokens=sum(stats.num_generation_tokens for _, stats in self._sequences.values())
            + sum(not state.is_prefilling for state in self._read_once.values()),
            cached_tokens=sum(self._cached.values()) if is_known else None,
            recomputed_tokens=self._recomputed_tokens(),
        )

    def _recomputed_tokens(self) -> Tokens:
        """Return the recomputed tokens of all sequences, and the preemptions since the last call.

        vLLM counts a preemption with the next token of the preempted sequence.
        """
        for name, (prompt, stats) in self._sequences.items():
            preemptions = getattr(stats, "num_preemptions", 0)  # vLLM 0.26 does not report it
            if preemptions:
                recomputed = self._recomputed.setdefault(name, RecomputedTokens())
                held = prompt + stats.num_generation_tokens
                recomputed.note(preemptions, held, self._recomputations)
        return sum(one.tokens for one in self._recomputed.values())

    def _store_cached_counts(self) -> None:
        """Store how many prompt tokens were cached, for sequences with a first token."""
        for name, state in list(self._reading.items()):
            if not state.is_prefilling:
                del self._reading[name]
                self._cached[name] = min(state.num_cached_tokens or 0, state.prompt_len)

    def read_final(self, now: Seconds) -> Progress:
        """Return the final token counts of a call, and update the prefill rate with them.

        vLLM counts a prompt with its first token; for a call stopped earlier the count is
        estimated.
        """
        progress = self.read_progress()
        cached_tokens = sum(self._cached.values()) if self._cached else None
        if self._prefills is None:
            return replace(progress, cached_tokens=cached_tokens)
        prefills = self._prefills
        prompt_tokens = sum(
            state.prompt_len for state in self._read_once.values() if not state.is_prefilling
        )
        for name, (prompt, stats) in self._sequences.items():
            if stats.first_token_ts or stats.num_generation_tokens:
                prompt_tokens += prompt
                computed = prompt - self._cached.get(name, 0)
                prefills.note_read(name, computed, stats.first_token_ts - stats.scheduled_ts)
            else:
                prompt_tokens += prefills.take_aborted(name, prompt, now)
        return Progress(
            prompt_tokens, progress.output_tokens, cached_tokens, progress.recomputed_tokens
        )


CURRENT_METER: ContextVar[LeaseMeter | None] = ContextVar("justitia_current_meter", default=None)
"""Token counter of the lease under which the current task calls vLLM; None outside a lease."""


class LeasedEngineClient:
    """Client of the engine for vLLM's HTTP application, which sets the lease's priority."""

    def __init__(self, engine: Any, grammars: GrammarChecks | None = None) -> None:
        self._engine = engine
        self._grammars = grammars

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(
        self, prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any]:
        """Call the engine's `generate` with the lease's priority instead of the caller's."""
        stream: AsyncGenerator[Any]
        if self._grammars is None or sampling_params.structured_outputs is None:
            stream = self._engine.generate(
                prompt, sampling_params, *args, **_at_lease_priority(kwargs)
            )
        else:
            stream = self._generate_checked(
                self._grammars, prompt, sampling_params, *args, **_at_lease_priority(kwargs)
            )
        meter = CURRENT_METER.get()
        return stream if meter is None else meter.tape.follow_outputs(stream, sampling_params)

    async def _generate_checked(
        self, grammars: GrammarChecks, prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any]:
        meter = CURRENT_METER.get()
        tenant = "" if meter is None else meter.tenant
        try:
            asked = sampling_params.structured_outputs
            fields = await grammars.check(tenant, vars(asked))
        except RequestError as error:
            raise validation_error(str(error)) from None
        except EngineError as error:
            raise retryable_error(str(error)) from None
        # The parameters are copied, because all prompts of the call share them.
        checked = sampling_params.structured_outputs = copy(asked)
        vars(checked).update(fields)
        outputs = self._engine.generate(prompt, sampling_params, *args, **kwargs)
        async with aclosing(outputs):
            async for output in outputs:
                yield output

    def encode(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        """Call the engine's `encode` with the lease's priority instead of the caller's."""
        stream: AsyncGenerator[Any] = self._engine.encode(*args, **_at_lease_priority(kwargs))
        return stream


def _at_lease_priority(kwargs: dict[str, Any]) -> dict[str, Any]:
    meter = CURRENT_METER.get()
    return kwargs if meter is None else {**kwargs, "priority": meter.priority}


def meter_requests(
    output_processor: Any,
    engine_core: Any,
    salts: CacheSalts | None = None,
    add_hold: Callable[[Any, Hold | None], Any] | None = None,
) -> None:
    """Patch vLLM's output processor to count each new sequence in the current lease's meter.

    Only the output processor sees every sequence (each of n choices, each prompt of a batch, each
    beam, embeddings) before its first token. Outputs would not suffice: unary calls yield none
    before the end, and aborted calls none at all.

    A stream that was cut on another replica is replayed before its request is sent to the engine;
    if only its last chunks were missing, no request is sent.

    Args:
        output_processor: vLLM's output processor.
        engine_core: vLLM's client of the engine process.
        salts: Salts of the prefix cache, set before a request is sent to the engine; None: prefix
            caching is off.
        add_hold: Returns sampling parameters with a hold; None: the engine keeps no contexts.
    """
    add_request = output_processor.add_request
    send_request = engine_core.add_request_async

    def add_metered_request(request: Any, *args: Any, **kwargs: Any) -> None:
        meter = CURRENT_METER.get()
        if salts is not None and meter is not None:
            try:
                own = request.cache_salt
                request.cache_salt = salts.salt(meter.tenant, own, time.monotonic())
            except RequestError as error:
                raise validation_error(str(error)) from None
        if add_hold is not None:
            hold = None if meter is None else meter.hold
            request.sampling_params = add_hold(request.sampling_params, hold)
        add_request(request, *args, **kwargs)
        state = output_processor.request_states.get(request.request_id)
        if meter is not None and state is not None:
            meter.add_sequence(state)
            meter.tape.play_earlier(request, state, output_processor)

    async def send_unless_ended(request: Any) -> None:
        meter = CURRENT_METER.get()
        if meter is None or not meter.tape.has_ended:
            await send_request(request)

    output_processor.add_request = add_metered_request
    engine_core.add_request_async = send_unless_ended


class ConnectorGauge(Protocol):
    """Reports the KV that an engine's connector keeps, from the connector's statistics."""

    def note(self, report: Mapping[str, Any], /) -> None: ...

    def read(self, now: Seconds) -> KeptKv:
        """Return the KV that the connector keeps at `now` (monotonic clock, seconds)."""


class EngineGauges:
    """Statistics of the engine, as of its last iteration."""

    def __init__(self) -> None:
        self.prefills = Prefills()
        self.recomputations = Recomputations()
        self.connector: ConnectorGauge | None = None
        """Statistics of the engine's KV connector; None without one."""
        self.steps = 0
        """Number of engine iterations so far, including iterations that scheduled no request."""
        self.kv_usage = 0.0
        """Share of the KV blocks that sequences hold, 0 to 1."""
        self.preemptions = 0
        """Number of preemptions so far, each counted when its sequence next produces a token or
        ends.
        """

    def stat_logger(self) -> Callable[..., Any]:
        """Return a factory of vLLM stat loggers that update engine gauges."""
        from vllm.v1.metrics.loggers import StatLoggerBase

        gauges = self

        class GaugeLogger(StatLoggerBase):
            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
                pass

            def record(
                self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **kwargs: Any
            ) -> None:
                gauges.steps += 1
                if scheduler_stats is not None:
                    gauges.kv_usage = scheduler_stats.kv_cache_usage
                    cache = scheduler_stats.prefix_cache_stats
                    if cache.preempted_requests:
                        gauges.recomputations.note_step(
                            cache.preempted_queries, cache.preempted_hits
                        )
                    gauges.prefills.note_step(
                        scheduler_stats.num_running_reqs,
                        scheduler_stats.num_waiting_reqs,
                        time.monotonic(),
                    )
                    if gauges.connector is not None and scheduler_stats.kv_connector_stats:
                        gauges.connector.note(scheduler_stats.kv_connector_stats)
                if iteration_stats is not None:
                    gauges.preemptions += iteration_stats.num_preempted_reqs

            def log_engine_initialized(self) -> None:
                pass

        return GaugeLogger
