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
    """Capacity of an inference engine, available once it has started."""

    kv_tokens: Tokens
    """KV memory M of the engine in tokens: number of blocks times block size."""
    block_size: Tokens
    """KV block size in tokens."""
    max_num_seqs: int
    """Maximum number of sequences that the engine runs at once."""
    max_model_len: Tokens
    """Maximum length of prompt plus output of one sequence."""
    caches_prefixes: bool = False
    """Whether prompts with a common prefix share its whole KV blocks, also within one engine step.
    """
    holds_contexts: bool = False
    """Whether the engine can hold contexts, so that it evicts them last."""
    host_kv_tokens: Tokens = 0
    """KV tokens that fit into the engine's KV cache in host memory; 0 without one."""


class Output(NamedTuple):
    """Output of one engine step for a sequence: tokens, and why the sequence ended if it did.

    The serving layer turns outputs into chunks, one after the other. Equal outputs give equal
    chunks, so a stream is continued from its outputs.
    """

    tokens: tuple[int, ...]
    finish_reason: str | None = None
    """Why the sequence ends here, for example `stop` or `length`; None if it continues."""
    stop_reason: int | str | None = None
    """Stop string or stop token that ended the sequence; None if neither did."""


class Hold(NamedTuple):
    """How long an engine keeps an inference's context in its prefix cache after the inference."""

    application_id: ApplicationId
    for_s: Seconds
    """Seconds for which a context is kept after its inference; 0: not at all."""
    ended: tuple[ApplicationId, ...] = ()
    """Ids of recently ended applications; the engine need not keep their contexts."""


@dataclass(frozen=True, slots=True)
class EngineCall:
    """HTTP call that a replica forwards to its engine under a lease."""

    lease_id: LeaseId
    priority: int
    """Scheduling priority of the call on the engine; lower runs first. It replaces `priority` in
    the body.
    """
    path: str
    """Path of the call in OpenAI's API, for example `/v1/chat/completions`."""
    headers: Mapping[str, str]
    """Headers of the caller's request, with names in lower case."""
    body: bytes
    earlier: tuple[Output, ...] = ()
    """Outputs of an earlier attempt on another engine, from which this engine continues."""
    tenant: str = ""
    """Tenant of the call; the call may read only prefix-cache entries of this tenant's group."""
    hold: Hold | None = None
    """How long to keep the call's context, if the engine can hold contexts
    (`engine.hold_contexts`).
    """


Answer = tuple[int, dict[str, str], bytes]
"""Whole HTTP answer to a call: status, headers and body."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """HTTP status and headers, the first item of every answer of an engine."""

    status: int
    headers: Mapping[str, str]
    """HTTP headers with names in lower case, without hop-by-hop headers and content-length."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Tokens used so far by the sequences of one inference."""

    prompt_tokens: Tokens
    """Prompt tokens as the engine counts them, over all sequences of the inference; 0 until known.
    """
    output_tokens: Tokens
    """Generated tokens, over all sequences of the inference."""
    cached_tokens: Tokens | None = None
    """Prompt tokens found in the prefix cache, over all sequences of the inference. None until each
    sequence has generated a token; the final value omits sequences without one.
    """
    recomputed_tokens: Tokens = 0
    """Tokens that the engine has computed again after preempting sequences of the inference."""


class Steps(NamedTuple):
    """Number of steps of an engine's loop; a step computes prompts or generates tokens."""

    made: int
    """Steps since the engine's start, including steps without a sequence."""
    has_work: bool
    """Whether the engine has sequences to run, so that it should make steps."""


@dataclass(frozen=True, slots=True)
class KeptKv:
    """KV memory that an engine keeps for applications between two inferences, in tokens."""

    held_contexts: int | None = None
    """Number of contexts that the engine still holds in its prefix cache; None: not reported."""
    held_kv_tokens: Tokens | None = None
    """Tokens of the held contexts, common prefixes counted once; None: not reported. The engine
    also counts their unused blocks as free memory.
    """
    host_kv_tokens: Tokens | None = None
    """Tokens in the KV cache in host memory; None: there is no host memory."""


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
        """Return the API paths that this engine serves with its model; valid once it runs."""

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
        """Return the tokens that the call under a lease has used; zeros for an unknown lease.

        A prompt without generation (embeddings, scores) counts one output token once it is
        computed. Unary calls progress too: the count comes from the engine's request states, not
        from sent chunks. The last value stays readable until `release`.
        """

    def release(self, lease_id: LeaseId) -> Progress:
        """Forget a lease whose call has ended, and return its final token counts.

        For a sequence that was stopped before its first token, the computed prompt tokens are
        estimated: the time since it was first scheduled times the prefill rate, at most the length
        of its prompt. For sequences stopped later the result agrees with the engine's own counters.
        """

    def take_outputs(self, lease_id: LeaseId) -> tuple[Output, ...]:
        """Return the engine outputs in a stream's chunks that were not returned before.

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
        """Return the KV memory that the engine keeps between inferences, also in host memory.

        A hold counts until it ends, also while the engine makes no steps. All values are None for
        an engine without holds and host memory.
        """

    def preemptions(self) -> int:
        """Return the number of preemptions since the engine's start."""

    def steps(self) -> Steps:
        """Return the number of engine steps as of its last report to this process."""

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
        """Return whether its own calls may have killed the engine, after `check` has raised."""

    async def stop(self) -> None:
        """Stop the engine and every process it started. Calling it twice is safe."""
