"""The inference engine as a replica sees it: one Protocol, and the values that cross it.

Two engines implement the Protocol: `vllm_engine` (vLLM's `AsyncLLM` and its own HTTP
application, in process) and `fake_engine` (sleeps as a GPU would, deterministic tokens). One
conformance suite, `tests/conformance/test_engines.py`, holds both to every line below.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from justitia_ray.units import LeaseId, Tokens


@dataclass(frozen=True, slots=True)
class EngineCapacity:
    """Capacity of an engine, known once it has started."""

    kv_tokens: Tokens
    """KV memory M, in tokens: blocks times block size."""
    block_size: Tokens
    """Tokens of a KV block."""
    max_num_seqs: int
    """Sequences that may run at once."""
    max_model_len: Tokens
    """Longest prompt plus output of one sequence."""
    caches_prefixes: bool = False
    """Whether prompts that begin alike, in whole blocks, share the KV of that, also within one
    step."""


class Output(NamedTuple):
    """The tokens that an engine handed to its serving layer at once, most often one, and an end.

    The layer makes its chunks of outputs, one after the other. Of the same outputs it makes the
    same chunks, so these are what a stream is continued from.
    """

    tokens: tuple[int, ...]
    """Token ids."""
    finish_reason: str | None = None
    """Reason why the sequence ends here, e.g. `stop`, `length`; None if it goes on."""
    stop_reason: int | str | None = None
    """The stop string or the stop token that ended it, if one did."""


@dataclass(frozen=True, slots=True)
class EngineCall:
    """A leased HTTP call to the engine."""

    lease_id: LeaseId
    priority: int
    """Priority: lower is served first and preempted last. A `priority` in the body is ignored."""
    path: str
    """Path of the OpenAI surface, e.g. `/v1/chat/completions`."""
    headers: Mapping[str, str]
    """Request headers that the caller sent, lower-case names."""
    body: bytes
    """JSON request body."""
    earlier: tuple[Output, ...] = ()
    """Outputs of an earlier attempt at this call, on another engine: they stand, and the engine
    goes on after them."""
    tenant: str = ""
    """Tenant that the call is for, whose room of the prefix cache it uses."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """Status and headers: the first item of every answer."""

    status: int
    headers: Mapping[str, str]
    """Headers with lower-case names; no hop-by-hop headers and no content-length."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Tokens that the sequences under one lease have used so far."""

    prompt_tokens: Tokens
    """Prompt tokens as the engine counts them, over all sequences of the lease; 0 until known."""
    output_tokens: Tokens
    """Tokens generated, over all sequences of the lease."""
    cached_tokens: Tokens | None = None
    """Prompt tokens that its sequences found in the prefix cache, over all of them. None until the
    first token of each; in the final progress, of those that had one, None if none had."""


class Steps(NamedTuple):
    """The steps of an engine's loop; each gives its sequences a token, or reads prompts of them."""

    made: int
    """Steps since the engine's start, those among them that gave nothing to anybody."""
    has_work: bool
    """Whether the engine has sequences, running or waiting, so that it makes steps."""


class Engine(Protocol):
    """An engine: start it, call it, read its meters, stop it."""

    async def start(self) -> EngineCapacity:
        """Load the model and return the engine's capacity.

        Raises:
            EngineError: If it cannot start; the message says what to change.
        """

    def call(self, call: EngineCall) -> AsyncGenerator[ResponseHead | bytes]:
        """Run one call: yield its head once, then the body in chunks as the engine makes them.

        Closing the generator early (`aclose`) disconnects the call: its KV is free within a second,
        for unary calls and for those that wait inside the engine too.

        A stream with `earlier` outputs yields what the whole stream would have been, chunk for
        chunk, the id and the time in its events apart. The earlier tokens are prefilled with the
        prompt; `usage` and `progress` count them as output.

        Raises:
            EngineError: If the engine died. A stream is never ended as if it were complete then:
                no `[DONE]`, no 5xx head made from the engine's death.
        """

    def paths(self) -> frozenset[str]:
        """Return the paths to which this engine with its model has an answer; once it runs."""

    async def answer_unscheduled(
        self, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[ResponseHead, bytes]:
        """Answer a call that takes no memory and no turn of the engine, such as `/tokenize`.

        The path is one of `justitia_ray.protocol.endpoints.UNSCHEDULED_PATHS`; headers and body are
        those of an `EngineCall`.

        Raises:
            EngineError: If the engine died.
        """

    def progress(self, lease_id: LeaseId) -> Progress:
        """Return the tokens that a call has used so far; zeros if the lease is not known.

        A prompt that is only read (embeddings, scores) has made one token when it is read.
        Unary calls progress too: the count comes from the engine's request states, not from what
        was sent. The last value stays readable until `release`.
        """

    def release(self, lease_id: LeaseId) -> Progress:
        """Forget a lease whose call has ended and return its final progress.

        Of a sequence that was stopped before its first token, the prompt tokens are those that the
        engine is estimated to have read: the time since it was first scheduled, at the rate of
        prefill, and no more than its prompt. What was stopped later agrees with the engine's own
        counters.
        """

    def take_outputs(self, lease_id: LeaseId) -> tuple[Output, ...]:
        """Return the outputs behind the chunks of a stream that were not taken yet.

        Whoever takes them with every chunk knows at any time all that is behind the chunks so far,
        and perhaps some more. `earlier` outputs are not among them; empty for a stream that cannot
        be continued, and for an unknown lease.
        """

    def obstacle(self, lease_id: LeaseId) -> str:
        """Return why a stream could not go on elsewhere; empty if it could.

        Known with its first chunk. Its continuation would not be what the same engine would have
        gone on with: e.g. more than one choice, a grammar, penalties by what was generated.
        """

    def free_kv_tokens(self) -> Tokens:
        """Return the KV memory that no sequence holds now, by the engine's own gauge."""

    def preemptions(self) -> int:
        """Return how often the engine has preempted a sequence since its start."""

    def steps(self) -> Steps:
        """Return the steps that the engine has made, as far as this process has heard of them."""

    def suspended(self) -> str:
        """Return which process of the engine is suspended by a signal; empty if none is."""

    def check(self) -> None:
        """Return if the engine is alive.

        Raises:
            EngineError: If it is dead.
        """

    def kill(self) -> None:
        """End every process of the engine at once, also a suspended one; `check` fails then.

        Blocks until they are gone.
        """

    def died_by_itself(self) -> bool:
        """Return whether what ran on the engine may have killed it, once `check` has raised."""

    async def stop(self) -> None:
        """Stop the engine and every process it started. Safe to call twice."""
