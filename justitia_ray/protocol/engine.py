"""Protocol for inference engines as replicas use them, and the values that it exchanges.

Two engines implement the Protocol: `vllm_engine` (vLLM's `AsyncLLM` and its own HTTP application,
in process) and `fake_engine` (sleeps as a GPU would, deterministic tokens). The conformance suite
`tests/conformance/test_engines.py` checks both against every statement below.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from justitia_ray.units import ApplicationId, LeaseId, Seconds, Tokens


@dataclass(frozen=True, slots=True)
class EngineCapacity:
    """Capacity of an engine, available once it has started."""

    kv_tokens: Tokens
    """KV memory M in tokens: number of blocks times block size."""
    block_size: Tokens
    """KV block size in tokens."""
    max_num_seqs: int
    """Maximum number of sequences that run at once."""
    max_model_len: Tokens
    """Maximum length of prompt plus output of one sequence."""
    caches_prefixes: bool = False
    """Whether prompts with a common prefix share the KV of its whole blocks, also within one
    iteration."""
    holds_contexts: bool = False
    """Whether contexts are evicted last while they are held (`Hold`)."""
    host_kv_tokens: Tokens = 0
    """KV tokens that fit into the KV cache in host memory; 0 without one."""


class Output(NamedTuple):
    """Output of one engine step for a sequence: tokens, and why the sequence ended if it did.

    The serving layer turns outputs into chunks, one after the other. Equal outputs give equal
    chunks, so a stream is continued from its outputs.
    """

    tokens: tuple[int, ...]
    finish_reason: str | None = None
    """Reason why the sequence ends here, e.g. `stop`, `length`; None if it continues."""
    stop_reason: int | str | None = None
    """The stop string or stop token that ended the sequence; None if neither did."""


class Hold(NamedTuple):
    """How long an engine keeps the context of a call in its prefix cache after the call."""

    application_id: ApplicationId
    for_s: Seconds
    """Time after the end of the call for which the context is kept; 0: not at all."""
    ended: tuple[ApplicationId, ...] = ()
    """Applications that have ended since the last call: their contexts need not be kept any more.
    """


@dataclass(frozen=True, slots=True)
class EngineCall:
    """Leased HTTP call to an engine."""

    lease_id: LeaseId
    priority: int
    """Scheduling priority: lower runs first and is preempted last. `priority` in the body is
    ignored."""
    path: str
    """Path of the OpenAI surface, e.g. `/v1/chat/completions`."""
    headers: Mapping[str, str]
    """Headers of the caller's request, with names in lower case."""
    body: bytes
    earlier: tuple[Output, ...] = ()
    """Outputs of an earlier attempt on another engine, from which the engine continues."""
    tenant: str = ""
    """Tenant of the call, which determines the prefix-cache entries that it shares."""
    hold: Hold | None = None
    """Hold of the call's context, if the engine is configured for holds (`engine.hold_contexts`).
    """


Answer = tuple[int, dict[str, str], bytes]
"""Whole answer to a call: status, headers and body."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """Status and headers: first item of every answer."""

    status: int
    headers: Mapping[str, str]
    """Headers with names in lower case, without hop-by-hop headers and content-length."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Tokens used so far by the sequences under one lease."""

    prompt_tokens: Tokens
    """Prompt tokens as the engine counts them, over all sequences of the lease; 0 until known."""
    output_tokens: Tokens
    """Generated tokens, over all sequences of the lease."""
    cached_tokens: Tokens | None = None
    """Prompt tokens found in the prefix cache, over all sequences of the lease; None until each
    sequence has generated a token. The final value covers the sequences with a token; None if no
    sequence had a token.
    """
    recomputed_tokens: Tokens = 0
    """Tokens that the engine has computed again after it had preempted sequences of the lease."""


class Steps(NamedTuple):
    """Number of steps of an engine's loop; a step computes prompts or generates tokens."""

    made: int
    """Steps since the engine's start, including steps that scheduled no sequence."""
    has_work: bool
    """Whether the engine has sequences, and should therefore make steps."""


@dataclass(frozen=True, slots=True)
class KeptKv:
    """KV that an engine keeps for applications between two inferences, in tokens."""

    held_contexts: int | None = None
    """Number of contexts whose holds (`Hold`) have not ended; None: not reported."""
    held_kv_tokens: Tokens | None = None
    """Cached tokens of these contexts, common tokens once; None: not reported. Blocks that no
    running sequence uses count as free memory, too."""
    host_kv_tokens: Tokens | None = None
    """Tokens in the host memory; None: there is no host memory."""


class Engine(Protocol):
    """Interface of an inference engine: start, run calls, report tokens and memory, stop."""

    async def start(self) -> EngineCapacity:
        """Load the model and return the engine's capacity.

        Raises:
            EngineError: If the engine cannot start; the message says what to change.
        """

    def call(self, call: EngineCall) -> AsyncGenerator[ResponseHead | bytes]:
        """Run one call: yield its head once, then the body's chunks as the engine generates them.

        Closing the generator early (`aclose`) aborts the call: its KV is freed within a second,
        also for unary calls and calls that still wait in the engine.

        A stream with `earlier` outputs yields the whole stream again, chunk for chunk, except for
        the id and time in its events. The earlier tokens are prefilled with the prompt; `usage` and
        `progress` count them as output.

        Raises:
            EngineError: If the engine died. A stream then does not look complete (no `[DONE]` is
                sent), and the call gets no head with status 5xx.
            StreamRefused: If the engine lives, and refuses or fails the call after its head.
        """

    def paths(self) -> frozenset[str]:
        """Return the paths that this engine with its model serves; valid once it runs."""

    async def answer_unscheduled(
        self, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[ResponseHead, bytes]:
        """Answer a call that needs no KV memory and no scheduling, such as `/tokenize`.

        The path is one of `justitia_ray.protocol.endpoints.UNSCHEDULED_PATHS`; headers and body are
        those of an `EngineCall`.

        Raises:
            EngineError: If the engine died.
        """

    def progress(self, lease_id: LeaseId) -> Progress:
        """Return the tokens that a call has used so far; zeros for an unknown lease.

        A prompt without generation (embeddings, scores) counts one output token once it is
        computed. Unary calls progress too: the count comes from the engine's request states, not
        from sent chunks. The last value stays readable until `release`.
        """

    def release(self, lease_id: LeaseId) -> Progress:
        """Forget a lease whose call has ended and return its final progress.

        For a sequence that was stopped before its first token, the computed prompt tokens are
        estimated: the time since it was first scheduled times the prefill rate, at most the length
        of its prompt. For sequences stopped later the result agrees with the engine's own counters.
        """

    def take_outputs(self, lease_id: LeaseId) -> tuple[Output, ...]:
        """Return the outputs of a stream's chunks that were not taken yet.

        A caller that takes outputs after every chunk has at least the outputs of all chunks so far.
        `earlier` outputs are not included; the result is empty for a stream that cannot be
        continued, and for an unknown lease.
        """

    def obstacle(self, lease_id: LeaseId) -> str:
        """Return why no other engine can continue a stream; empty if one can.

        The value is known with the first chunk. A stream cannot be continued if the continuation
        would differ from what the same engine would have generated, e.g. with more than one choice,
        a grammar, or penalties for generated tokens.
        """

    def free_kv_tokens(self) -> Tokens:
        """Return the free KV memory in tokens, by the engine's own gauge."""

    def kept_kv(self) -> KeptKv:
        """Return the held contexts and the use of the host memory.

        A hold counts until it ends, also while the engine makes no steps. All values are None for
        an engine without holds and host memory.
        """

    def preemptions(self) -> int:
        """Return the number of preemptions since the engine's start."""

    def steps(self) -> Steps:
        """Return the engine's steps as of its last report to this process."""

    def suspended(self) -> str:
        """Return the name of an engine process suspended by a signal; empty if none is."""

    def check(self) -> None:
        """Check that the engine is running.

        Raises:
            EngineError: If the engine is dead.
        """

    def kill(self) -> None:
        """Kill every process of the engine, also suspended ones; `check` then raises.

        Blocks until the processes have exited.
        """

    def died_by_itself(self) -> bool:
        """Return whether the engine's own work may have killed it, after `check` has raised."""

    async def stop(self) -> None:
        """Stop the engine and every process it started. Calling it twice is safe."""
