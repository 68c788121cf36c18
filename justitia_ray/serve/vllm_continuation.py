"""The outputs behind a stream of vLLM's: kept for another engine to go on from, or played first.

vLLM's serving layer makes the chunks of a stream from the outputs that it draws from the engine's
client, and the same chunks from the same outputs: text, tool calls, finish reason, usage. So the
outputs of an earlier attempt go through vLLM's own output processor again, as if the engine had
just made them: its detokenizer, its search for stop strings and its counts then stand where they
stood. Only then the engine gets the request, with those tokens as part of the prompt.

None of it is a stable API of vLLM; `tests/conformance/test_continuation.py` holds each release to
it.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from justitia_ray.serve.engine import Output

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
"""Sampling parameters that count or follow what was generated, which becomes prompt.

`repetition_penalty` is none of them: vLLM applies it to the tokens of prompt and output alike.
"""
_NEEDS_PROBABILITIES = (
    "logprobs",
    "logprob_token_ids",
    "prompt_logprobs",
    "prompt_logprob_token_ids",
)
"""What they ask for is made with the tokens, and is not kept."""


class StreamTape:
    """Keeps the outputs of the stream under one lease, and plays those of an earlier attempt.

    Args:
        earlier: Outputs of the earlier attempt; empty if there was none.
    """

    def __init__(self, earlier: tuple[Output, ...]) -> None:
        self._earlier = earlier
        self._played: list[Any] = []
        """vLLM's outputs made of the earlier ones, which its serving layer has not drawn yet."""
        self._outputs: list[Output] = []
        self._streams = 0
        self.obstacle = ""
        """Why the stream could not go on elsewhere."""
        self.has_ended = False
        """The earlier outputs were all: there is nothing for the engine to do."""

    def take(self) -> tuple[Output, ...]:
        """Return the outputs drawn since the last call."""
        outputs, self._outputs = self._outputs, []
        return tuple(outputs)

    def follow(self, outputs: AsyncGenerator[Any], params: Any) -> AsyncGenerator[Any]:
        """Return what vLLM's serving layer is to draw in place of the engine's outputs.

        Args:
            outputs: What the engine makes.
            params: vLLM's `SamplingParams`.
        """
        if params.output_kind.name != "DELTA":
            return outputs  # not a stream
        self._streams += 1
        self.obstacle = self.obstacle or _obstacle(params)
        if self._streams > 1:
            self.obstacle = "it has more than one prompt"
        return outputs if self.obstacle and not self._earlier else self._follow(outputs)

    async def _follow(self, outputs: AsyncGenerator[Any]) -> AsyncGenerator[Any]:
        async with aclosing(outputs):
            async for output in outputs:
                for played in self._take_played():
                    yield played
                if not self.obstacle:
                    self._outputs.append(_kept(output))
                yield output
        for played in self._take_played():
            yield played

    def _take_played(self) -> list[Any]:
        played, self._played = self._played, []
        return played

    def play(self, request: Any, state: Any, output_processor: Any) -> None:
        """Bring a sequence that vLLM has just taken on to where the earlier attempt was.

        Args:
            request: vLLM's `EngineCoreRequest`, which then goes to the engine: changed.
            state: vLLM's `RequestState` of it: changed.
            output_processor: vLLM's, which has it.
        """
        if request.prompt_token_ids is None:
            self.obstacle = self.obstacle or "its prompt is not one of tokens"
        if not self._earlier:
            return
        queue, state.queue = state.queue, None  # so that the outputs come back one by one
        tracing, output_processor.tracing_enabled = output_processor.tracing_enabled, False
        for output in self._earlier:
            made = output_processor.process_outputs([_remade(request.request_id, output)])
            self._played += made.request_outputs
        output_processor.tracing_enabled = tracing
        state.queue = queue
        state.is_prefilling = True
        _shift(request, state, [token for output in self._earlier for token in output.tokens])
        if self._earlier[-1].finish_reason is not None:
            from vllm.outputs import STREAM_FINISHED

            self.has_ended = True
            queue.put(STREAM_FINISHED)


def _shift(request: Any, state: Any, tokens: list[int]) -> None:
    """Let the engine go on after these tokens; the frontend counts them as output."""
    params = request.sampling_params.clone()
    params.max_tokens -= len(tokens)
    params.min_tokens = max(0, params.min_tokens - len(tokens))
    request.sampling_params = params
    # A new list: the old one stays the prompt of the frontend.
    request.prompt_token_ids = [*request.prompt_token_ids, *tokens]
    state.stats.num_generation_tokens = len(tokens)


def _kept(output: Any) -> Output:
    """Return what has to be known of a vLLM `RequestOutput` to make it again."""
    (completion,) = output.outputs
    return Output(tuple(completion.token_ids), completion.finish_reason, completion.stop_reason)


def _remade(request_id: str, output: Output) -> Any:
    """Return an `EngineCoreOutput` of which vLLM makes that output again."""
    from vllm.v1.engine import EngineCoreOutput, FinishReason

    reason, stop = output.finish_reason, output.stop_reason
    # A stop string is found by the output processor, not by the engine.
    by_engine = reason is not None and not isinstance(stop, str)
    return EngineCoreOutput(
        request_id=request_id,
        new_token_ids=list(output.tokens),
        finish_reason=FinishReason[reason.upper()] if reason is not None and by_engine else None,
        stop_reason=stop if by_engine else None,
    )


def _obstacle(params: Any) -> str:
    """Return why a stream under these `SamplingParams` could not go on elsewhere, if so."""
    if params.n > 1:
        return "it has more than one choice"
    for name in _NEEDS_WHOLE_OUTPUT:
        if getattr(params, name):
            return f"{name} needs to know what was generated before"
    for name in _NEEDS_PROBABILITIES:
        if getattr(params, name) is not None:
            return f"{name} of what was generated before are lost"
    if params.seed is not None and params.temperature > 0:
        return "with its seed it is to be repeatable; asked for again it is the same"
    return ""
