"""What vLLM's internals tell about the sequences of a lease and about the whole engine.

None of it is a stable API of vLLM; `tests/conformance/test_engines.py` holds each release to it.
The context variable lives here, in a module that is imported by name: Serve pickles a deployment
class by value, and with it every module-global of the class's own module.
"""

from collections.abc import AsyncGenerator, Callable
from contextvars import ContextVar
from typing import Any

from justitia_ray.serve.engine import Output, Progress
from justitia_ray.serve.vllm_continuation import StreamTape
from justitia_ray.units import Tokens


class LeaseMeter:
    """Counts the tokens of every vLLM request that runs under one lease."""

    def __init__(self, priority: int, earlier: tuple[Output, ...] = ()) -> None:
        self.priority = priority
        self.tape = StreamTape(earlier)
        self._sequences: dict[str, tuple[Tokens, Any]] = {}
        self._read_once: dict[str, Any] = {}
        """vLLM's states of prompts of which nothing is generated."""

    def add(self, state: Any) -> None:
        """Count a sequence from vLLM's `RequestState` of it.

        Only the prompt's length and the statistics object are kept. vLLM goes on counting in that
        object, and it outlives the state, which vLLM drops on the last token and on an abort.
        A prompt of which nothing is generated has no such count: its state tells when it is read.
        """
        if state.detokenizer is None and state.logprobs_processor is None:
            self._read_once[state.request_id] = state
            return
        self._sequences[state.request_id] = (state.prompt_len, state.stats)

    def read(self) -> Progress:
        """Return the tokens so far, over all sequences: n choices count their prompt n times."""
        return Progress(
            prompt_tokens=sum(prompt for prompt, _ in self._sequences.values())
            + sum(state.prompt_len for state in self._read_once.values()),
            output_tokens=sum(stats.num_generation_tokens for _, stats in self._sequences.values())
            + sum(not state.is_prefilling for state in self._read_once.values()),
        )


CURRENT_METER: ContextVar[LeaseMeter | None] = ContextVar("justitia_current_meter", default=None)
"""The meter of the lease under which this task calls vLLM; None outside of a lease."""


class LeasedEngineClient:
    """vLLM's engine client as vLLM's HTTP application sees it: priorities are the lease's."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(
        self, prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any]:
        """Generate as the engine does, at the lease's priority; the caller's is dropped."""
        stream: AsyncGenerator[Any] = self._engine.generate(
            prompt, sampling_params, *args, **_at_lease_priority(kwargs)
        )
        meter = CURRENT_METER.get()
        return stream if meter is None else meter.tape.follow(stream, sampling_params)

    def encode(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        """Embed or score as the engine does, at the lease's priority."""
        stream: AsyncGenerator[Any] = self._engine.encode(*args, **_at_lease_priority(kwargs))
        return stream


def _at_lease_priority(kwargs: dict[str, Any]) -> dict[str, Any]:
    meter = CURRENT_METER.get()
    return kwargs if meter is None else {**kwargs, "priority": meter.priority}


def meter_requests(output_processor: Any, engine_core: Any) -> None:
    """Make vLLM's output processor hand every sequence it takes on to the current lease's meter.

    This is the one place that sees every sequence (each of n choices, each prompt of a batch, each
    beam, embeddings) before its first token. Outputs would not do: unary calls yield none before
    the end, and aborted calls none at all.

    A stream that was cut elsewhere is brought up to date there, before the engine hears of it; of
    one that lacks its last chunks only, the engine does not hear.
    """
    add_request = output_processor.add_request
    send_request = engine_core.add_request_async

    def add_and_meter(request: Any, *args: Any, **kwargs: Any) -> None:
        add_request(request, *args, **kwargs)
        meter = CURRENT_METER.get()
        state = output_processor.request_states.get(request.request_id)
        if meter is not None and state is not None:
            meter.add(state)
            meter.tape.play(request, state, output_processor)

    async def send_unless_ended(request: Any) -> None:
        meter = CURRENT_METER.get()
        if meter is None or not meter.tape.has_ended:
            await send_request(request)

    output_processor.add_request = add_and_meter
    engine_core.add_request_async = send_unless_ended


class EngineGauges:
    """The engine's own figures, as of its last iteration."""

    def __init__(self) -> None:
        self.kv_usage = 0.0
        """Share of the KV blocks that sequences hold, 0 to 1."""
        self.preemptions = 0
        """Preemptions of sequences that have produced a token since, or ended."""

    def stat_logger(self) -> Callable[..., Any]:
        """Return the factory of a vLLM stat logger that keeps these gauges up to date."""
        from vllm.v1.metrics.loggers import StatLoggerBase

        gauges = self

        class GaugeLogger(StatLoggerBase):
            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
                pass

            def record(
                self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **kwargs: Any
            ) -> None:
                if scheduler_stats is not None:
                    gauges.kv_usage = scheduler_stats.kv_cache_usage
                if iteration_stats is not None:
                    gauges.preemptions += iteration_stats.num_preempted_reqs

            def log_engine_initialized(self) -> None:
                pass

        return GaugeLogger
