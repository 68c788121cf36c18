"""Fake engine without a model: sleeps as a GPU would and returns deterministic tokens.

The fake engine follows vLLM's rules where scheduling depends on them (priority, admission, prompt
chunks, preemption, KV blocks, the prefix cache, errors), so everything above an engine can be
tested, and its overhead measured, without vLLM.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from justitia_ray.engine_model.block_pool import BlockPool
from justitia_ray.engine_model.contents import ContentTree, Span, TokenContent
from justitia_ray.engine_model.steps import EngineSequence, StepScheduler
from justitia_ray.errors import ConfigError, EngineError, RequestError
from justitia_ray.protocol.engine import (
    EngineCall,
    EngineCapacity,
    KeptKv,
    Output,
    Progress,
    ResponseHead,
    Steps,
)
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS
from justitia_ray.serve.engines.cache_salts import CacheSalts
from justitia_ray.serve.engines.fake_openai import (
    DETOKENIZE_PATH,
    TOKENIZE_PATH,
    FakeAnswer,
    FakeRequest,
    FakeWords,
    answer_tokens,
    error_answer,
    parse_request,
)
from justitia_ray.units import LeaseId, Seconds, Tokens

_JSON = {"content-type": "application/json"}
_EVENT_STREAM = {"content-type": "text/event-stream; charset=utf-8"}


@dataclass(slots=True, eq=False, kw_only=True)
class FakeSequence(EngineSequence):
    """Sequence of the fake engine: one choice in the answer to one prompt."""

    lease_id: LeaseId
    chunk_began_at: Seconds = 0.0
    """Start of the engine step that computes the prompt's latest chunk (loop clock, seconds)."""
    chunk_s: Seconds = 0.0
    """Duration in seconds of the engine step that computes the prompt's latest chunk."""
    read_before: Tokens = 0
    """Number of prompt tokens that are computed or cached before the latest chunk."""
    read: Tokens = 0
    """Number of prompt tokens that are computed or cached once the latest chunk is computed."""

    def read_tokens(self, now: Seconds) -> Tokens:
        """Return the prompt tokens computed by `now`, all of them once an output token exists."""
        if self.generated:
            return self.prompt_tokens
        share = (now - self.chunk_began_at) / self.chunk_s if self.chunk_s else 1.0
        return self.read_before + int((self.read - self.read_before) * min(1.0, share))

    def note_chunk(self, began_at: Seconds, length_s: Seconds) -> None:
        """Record a chunk of the prompt, unless it is computed again after a preemption."""
        read = min(self.computed, self.prompt_tokens)
        if read > self.read:
            self.read_before, self.read = self.read, read
            self.chunk_began_at, self.chunk_s = began_at, length_s


class _AnswerContent:
    """Prompt and answer tokens of a sequence; answer tokens are generated when they are read."""

    def __init__(
        self, prompt: TokenContent, prompt_tokens: Tokens, block_size: Tokens, answer: FakeWords
    ) -> None:
        self._content = prompt
        self._tokens = prompt_tokens
        self._block_size = block_size
        self._answer = answer
        self._made = 0

    def spans(self, start: int, stop: int) -> Iterable[Span]:
        """Return the tokens of each full KV block between two token positions, in order."""
        made = stop * self._block_size - self._tokens
        if made > self._made:
            self._content.append(self._answer(self._made, made))
            self._made = made
        return self._content.spans(start, stop)


@dataclass(slots=True)
class _Lease:
    sequences: list[FakeSequence]
    stream: bool
    choices: int = 1
    """Number of sequences that the call generates for each prompt."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    outputs: list[Output] = field(default_factory=list)
    """Token outputs of the call that `take_outputs` has not returned yet."""
    ended_at: Seconds = 0.0
    """Time at which the call under this lease ended, in seconds of the loop's clock."""

    @property
    def obstacle(self) -> str:
        """Reason why another replica could not continue the call's stream; empty if one could."""
        return "it has more than one sequence" if len(self.sequences) > 1 else ""

    @property
    def finished(self) -> bool:
        return all(sequence.finished for sequence in self.sequences)

    def final_progress(self, now: Seconds) -> Progress:
        return Progress(
            sum(sequence.read_tokens(now) for sequence in self.sequences),
            self.progress.output_tokens,
            self._cached_tokens(),
            sum(sequence.recomputed for sequence in self.sequences),
        )

    @property
    def progress(self) -> Progress:
        is_known = all(sequence.generated for sequence in self.sequences)
        return Progress(
            prompt_tokens=sum(sequence.prompt_tokens for sequence in self.sequences),
            output_tokens=sum(sequence.generated for sequence in self.sequences),
            cached_tokens=self._cached_tokens() if is_known else None,
            recomputed_tokens=sum(sequence.recomputed for sequence in self.sequences),
        )

    def _cached_tokens(self) -> Tokens | None:
        """Return the cached prompt tokens of sequences that have generated a token."""
        cached = [
            min(sequence.cached_tokens or 0, sequence.prompt_tokens)
            for sequence in self.sequences
            if sequence.generated
        ]
        return sum(cached) if cached else None


_NO_LEASE = _Lease([], stream=False)


class FakeEngine:
    """Engine for tests, demos and benchmarks on CPUs; see `Engine` in `justitia_ray.protocol`.

    Args:
        served_model_name: Name that callers pass as `model`.
        kv_tokens: KV memory in tokens, rounded down to whole blocks.
        block_size: KV block size in tokens.
        max_num_seqs: Maximum number of sequences that run at once.
        max_model_len: Maximum length of prompt plus output; `kv_tokens` if that is less.
        iteration_s: Length of a decode iteration; 0.03 is about that of a 7B model on an A10G.
        prefill_s_per_token: Time that each prompt token adds to the iteration that computes it.
        max_num_batched_tokens: Maximum number of tokens per iteration.
        enable_prefix_caching: Whether KV of prompt prefixes that were computed before is
            reused.
        enable_prompt_tokens_details: Whether `usage` reports the prompt tokens found in the
            cache.
        cache_salts: Salts of the prefix cache, by tenant; None: all tenants share it.

    Raises:
        ConfigError: If `kv_tokens` is less than one block.
    """

    def __init__(
        self,
        served_model_name: str,
        kv_tokens: Tokens,
        block_size: Tokens = 1,
        max_num_seqs: int = 256,
        max_model_len: Tokens = 4096,
        iteration_s: Seconds = 0.03,
        prefill_s_per_token: Seconds = 0.0,
        max_num_batched_tokens: Tokens = 8192,
        *,
        enable_prefix_caching: bool = True,
        enable_prompt_tokens_details: bool = False,
        cache_salts: CacheSalts | None = None,
    ) -> None:
        if kv_tokens < block_size:
            raise ConfigError(
                f"fake engine: kv_tokens is {kv_tokens}; it must be at least {block_size}"
            )
        self._served_model_name = served_model_name
        self._scheduler = StepScheduler[FakeSequence](
            BlockPool(kv_tokens // block_size, caching=enable_prefix_caching),
            block_size,
            max_num_seqs,
            max_num_batched_tokens,
        )
        self._contents = ContentTree(block_size)
        self._tells_cached = enable_prompt_tokens_details
        self._cache_salts = cache_salts
        self._kv_tokens = kv_tokens // block_size * block_size
        self._max_model_len = min(max_model_len, self._kv_tokens)
        self._iteration_s = iteration_s
        self._prefill_s_per_token = prefill_s_per_token
        self._leases: dict[LeaseId, _Lease] = {}
        self._called: dict[FakeSequence, _Lease] = {}
        """Sequences of running calls, with their leases. Leases of ended calls are only in
        `_leases`.
        """
        self._arrivals = 0
        self._steps = 0
        self._suspended = ""
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self._work = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._why_dead: str | None = "it has not been started"
        self._by_itself = False
        self.begun_prompt_tokens: Tokens = 0
        """Prompt tokens of all sequences that have generated a token, as vLLM counts them."""
        self.made_tokens: Tokens = 0
        self.cache_queries: Tokens = 0
        """Prompt tokens that were looked up in the prefix cache when each sequence was first
        admitted.
        """
        self.cache_hits: Tokens = 0
        """Prompt tokens that were found in the prefix cache when each sequence was first admitted.
        """
        self.admitted: list[LeaseId] = []
        """Leases of admitted sequences in order of admission, repeated after a preemption."""

    async def start(self) -> EngineCapacity:
        self._why_dead = None
        self._loop = asyncio.create_task(self._run_iterations())
        return EngineCapacity(
            kv_tokens=self._kv_tokens,
            block_size=self._scheduler.block_size,
            max_num_seqs=self._scheduler.max_num_seqs,
            max_model_len=self._max_model_len,
            caches_prefixes=self._scheduler.pool.caching,
        )

    async def call(self, call: EngineCall) -> AsyncGenerator[ResponseHead | bytes]:
        """Run one call, see `Engine.call`; only chat and text completions are supported.

        Raises:
            EngineError: If the engine is dead or stopped, or dies during the call.
        """
        self.check()
        try:
            request = parse_request(
                call.path, call.body, self._served_model_name, self._max_model_len
            )
            apart = self._cache_salt_of(call, request)
        except RequestError as error:
            status, body = error_answer(error)
            yield ResponseHead(status, _JSON)
            yield body
            return
        answer = FakeAnswer(request, self._served_model_name, call.lease_id)
        lease = self._submit(call, request, answer, apart)
        try:
            if request.body.stream:
                yield ResponseHead(200, _EVENT_STREAM)
                if opening := answer.opening():
                    yield opening
                async with aclosing(self._stream_tokens(lease, answer, call.earlier)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                self.check()
                yield answer.closing(self._cached_tokens_to_report(lease))
            else:
                await self._wait_for_tokens(lease)
                yield ResponseHead(200, _JSON)
                yield answer.body(self._cached_tokens_to_report(lease))
        finally:
            lease.ended_at = asyncio.get_running_loop().time()
            for sequence in lease.sequences:
                self._scheduler.remove(sequence)
                del self._called[sequence]

    def paths(self) -> frozenset[str]:
        return frozenset({CHAT, COMPLETIONS, TOKENIZE_PATH, DETOKENIZE_PATH})

    async def answer_unscheduled(
        self, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[ResponseHead, bytes]:
        """Answer `/tokenize` or `/detokenize`.

        Raises:
            EngineError: If the engine is dead or stopped.
        """
        self.check()
        try:
            answer = answer_tokens(path, body, self._max_model_len)
        except RequestError as error:
            status, answer = error_answer(error)
            return ResponseHead(status, _JSON), answer
        return ResponseHead(200, _JSON), answer

    def take_outputs(self, lease_id: LeaseId) -> tuple[Output, ...]:
        lease = self._leases.get(lease_id, _NO_LEASE)
        taken, lease.outputs = tuple(lease.outputs), []
        return taken

    def obstacle(self, lease_id: LeaseId) -> str:
        return self._leases.get(lease_id, _NO_LEASE).obstacle

    def progress(self, lease_id: LeaseId) -> Progress:
        return self._leases.get(lease_id, _NO_LEASE).progress

    def release(self, lease_id: LeaseId) -> Progress:
        lease = self._leases.pop(lease_id, _NO_LEASE)
        return lease.final_progress(lease.ended_at)

    def free_kv_tokens(self) -> Tokens:
        return self._scheduler.pool.free_blocks * self._scheduler.block_size

    def kept_kv(self) -> KeptKv:
        """Return that nothing is reported, because the fake engine cannot hold contexts."""
        return KeptKv()

    def preemptions(self) -> int:
        return self._scheduler.preemptions

    def check(self) -> None:
        """Raise EngineError unless the engine is running.

        Raises:
            EngineError: If it is dead, stopped, or was never started.
        """
        if self._why_dead is not None:
            raise EngineError(f"the fake engine does not run: {self._why_dead}")

    def steps(self) -> Steps:
        return Steps(self._steps, self._scheduler.has_work)

    def suspended(self) -> str:
        """Return the name of the suspended process that a test passed to `stall`; empty if none."""
        return self._suspended

    def stall(self, suspended: str = "") -> None:
        """Pause the decode iterations until `go_on`, like an engine that hangs or is suspended.

        Args:
            suspended: Name of the process reported as suspended; empty: the engine hangs.
        """
        self._suspended = suspended
        self._goes_on.clear()

    def go_on(self) -> None:
        self._suspended = ""
        self._goes_on.set()

    def kill(self) -> None:
        """Stop the engine as a kill from outside does: `died_by_itself` is then False."""
        self._by_itself = False
        self._end("it was killed")

    def died_by_itself(self) -> bool:
        return self._by_itself

    def die(self, *, by_itself: bool = True) -> None:
        """Make the engine die, by its own work or by a kill from outside."""
        self._by_itself = by_itself
        self._end("it died")

    async def stop(self) -> None:
        self._end("it was stopped")
        if self._loop is not None:
            await asyncio.wait([self._loop])

    def _end(self, why: str) -> None:
        self._why_dead = why
        if self._loop is not None:
            self._loop.cancel()
        for lease in self._called.values():
            lease.changed.set()

    def _cache_salt_of(self, call: EngineCall, request: FakeRequest) -> str | None:
        """Return the prefix-cache salt of a call's prompts.

        Raises:
            RequestError: If the caller's own salt is invalid.
        """
        own = request.body.fields.get("cache_salt")
        if own is not None and not (isinstance(own, str) and own):
            raise RequestError("cache_salt must be a non-empty string", "cache_salt")
        if self._cache_salts is None:
            return own
        now = asyncio.get_running_loop().time()
        return self._cache_salts.salt(call.tenant, own, now)

    def _submit(
        self, call: EngineCall, request: FakeRequest, answer: FakeAnswer, apart: str | None
    ) -> _Lease:
        sequences: list[FakeSequence] = []
        block_size = self._scheduler.block_size
        for prompt in request.prompts:
            for _ in range(request.body.n):
                content = _AnswerContent(
                    self._contents.content(prompt, apart),
                    len(prompt),
                    block_size,
                    answer.words(len(sequences)),
                )
                sequence = FakeSequence(
                    lease_id=call.lease_id,
                    content=content,
                    priority=call.priority,
                    arrival=self._arrivals,
                    prompt_tokens=len(prompt),
                    max_tokens=request.max_tokens,
                    generated=sum(len(output.tokens) for output in call.earlier),
                    reads_cache=request.reads_cache,
                )
                self._arrivals += 1
                if not sequence.finished:
                    self._scheduler.add(sequence)
                sequences.append(sequence)
        lease = _Lease(sequences, request.body.stream, request.body.n)
        self._leases[call.lease_id] = lease
        self._called |= dict.fromkeys(sequences, lease)
        self._work.set()
        return lease

    async def _stream_tokens(
        self, lease: _Lease, answer: FakeAnswer, earlier: tuple[Output, ...]
    ) -> AsyncGenerator[bytes]:
        """Yield a stream's tokens as they are generated, after the tokens of an earlier attempt."""
        sent = [0] * len(lease.sequences)
        for output in earlier:
            yield answer.events(0, sent[0], output.tokens)
            sent[0] += len(output.tokens)
        while not lease.finished or sent != [s.generated for s in lease.sequences]:
            await self._wait_for_tokens(lease)
            events = []
            for k, sequence in enumerate(lease.sequences):
                tokens = answer.tokens(k, sent[k], sequence.generated)
                events.append(answer.events(k, sent[k], tokens))
                sent[k] = sequence.generated
                if not lease.obstacle:
                    end = "length" if sequence.finished else None
                    lease.outputs.append(Output(tokens, end))
            yield b"".join(events)

    async def _wait_for_tokens(self, lease: _Lease) -> None:
        """Wait for the next token of a stream, or for the last token of a unary call."""
        await lease.changed.wait()
        lease.changed.clear()
        self.check()

    def _cached_tokens_to_report(self, lease: _Lease) -> Tokens | None:
        """Return a call's cached prompt tokens, counting only the first choice of each prompt."""
        if not self._tells_cached:
            return None
        first = lease.sequences[:: lease.choices]
        return sum(sequence.cached_tokens or 0 for sequence in first)

    def _note_admitted(self, admitted: Sequence[FakeSequence]) -> None:
        self.admitted += [sequence.lease_id for sequence in admitted]
        for sequence in admitted:
            if not sequence.preemptions and sequence.reads_cache and self._scheduler.pool.caching:
                self.cache_queries += sequence.tokens
                self.cache_hits += sequence.cached_tokens or 0

    async def _run_iterations(self) -> None:
        while True:
            before = len(self._scheduler.running)
            step = self._scheduler.plan()
            if not step:
                if self._scheduler.has_work:
                    continue
                self._work.clear()
                await self._work.wait()
                continue
            admitted = self._scheduler.running[before:]
            self._note_admitted(admitted)
            chunks = {one: tokens for one, tokens in step.items() if tokens > 1}
            chunks |= {one: step[one] for one in admitted}
            length_s = self._iteration_s + self._prefill_s_per_token * sum(chunks.values())
            began_at = asyncio.get_running_loop().time()
            for sequence in chunks:
                sequence.note_chunk(began_at, length_s)
            await asyncio.sleep(length_s)
            await self._goes_on.wait()
            self._steps += 1
            for sequence in self._scheduler.end(step):
                self.made_tokens += 1
                if sequence.generated == 1:
                    self.begun_prompt_tokens += sequence.prompt_tokens
                lease = self._called[sequence]
                if lease.stream or lease.finished:
                    lease.changed.set()
