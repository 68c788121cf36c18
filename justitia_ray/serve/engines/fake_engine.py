"""An engine without a model: sleeps as a GPU would, and makes deterministic tokens.

It shares vLLM's rules where scheduling can see them (priority, admission, preemption, KV in
blocks, errors), so that everything above an engine is tested, and its overhead measured, without
one.
"""

import asyncio
from bisect import insort
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from justitia_ray.errors import ConfigError, EngineError, RequestError
from justitia_ray.protocol.engine import (
    EngineCall,
    EngineCapacity,
    Output,
    Progress,
    ResponseHead,
    Steps,
)
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS
from justitia_ray.serve.engines.fake_openai import (
    DETOKENIZE_PATH,
    TOKENIZE_PATH,
    FakeAnswer,
    FakeRequest,
    answer_tokens,
    error_answer,
    parse_request,
)
from justitia_ray.units import LeaseId, Seconds, Tokens

_JSON = {"content-type": "application/json"}
_EVENT_STREAM = {"content-type": "text/event-stream; charset=utf-8"}


@dataclass(slots=True, eq=False)
class FakeSequence:
    """A sequence of the fake engine: a choice of a prompt."""

    lease_id: LeaseId
    priority: int
    arrival: int
    """Rank of arrival among all sequences; it stays through preemptions."""
    prompt_tokens: Tokens
    max_tokens: Tokens
    generated: Tokens = 0
    prefill_began_at: Seconds | None = None
    """Instant of its first admission; None before."""
    prefill_s: Seconds = 0.0
    """Length of the iteration that makes its first token."""

    def read_tokens(self, now: Seconds) -> Tokens:
        """Return the prompt tokens that were read: all of them from the first token on."""
        if self.generated:
            return self.prompt_tokens
        if self.prefill_began_at is None:
            return 0
        share = (now - self.prefill_began_at) / self.prefill_s if self.prefill_s else 1.0
        return int(self.prompt_tokens * min(1.0, share))

    @property
    def order(self) -> tuple[int, int]:
        """Lower is admitted first and preempted last."""
        return self.priority, self.arrival

    @property
    def context(self) -> Tokens:
        """Tokens whose KV the sequence holds while it runs, and that its prefill has to compute."""
        return self.prompt_tokens + self.generated

    @property
    def finished(self) -> bool:
        """True once all tokens of the sequence are made."""
        return self.generated == self.max_tokens


@dataclass(slots=True)
class FakeBatch:
    """The running and waiting sequences of an engine.

    A sequence that can never fit (prompt and output exceed `kv_tokens`) must not be added.
    """

    kv_tokens: Tokens
    """A multiple of the block size."""
    block_size: Tokens
    max_num_seqs: int
    running: list[FakeSequence] = field(default_factory=list)
    waiting: list[FakeSequence] = field(default_factory=list)
    """Sequences in the order of admission."""
    preemptions: int = 0

    @property
    def free_kv_tokens(self) -> Tokens:
        """KV memory that no running sequence holds."""
        return self.kv_tokens - sum(self._held(sequence.context) for sequence in self.running)

    def add_sequence(self, sequence: FakeSequence) -> None:
        """Queue a sequence, new or preempted."""
        insort(self.waiting, sequence, key=lambda waiting: waiting.order)

    def remove_sequence(self, sequence: FakeSequence) -> None:
        """Drop a running or waiting sequence; nothing happens if it has ended."""
        for sequences in (self.running, self.waiting):
            if sequence in sequences:
                sequences.remove(sequence)

    def admit(self) -> list[FakeSequence]:
        """Start waiting sequences in order, up to the first that does not fit, and return them.

        One fits if it and all that run can make one more token each.
        """
        admitted = []
        need = self._next_need()
        while self.waiting and len(self.running) < self.max_num_seqs:
            need += self._held(self.waiting[0].context + 1)
            if need > self.kv_tokens:
                break
            sequence = self.waiting.pop(0)
            self.running.append(sequence)
            admitted.append(sequence)
        return admitted

    def step(self) -> list[FakeSequence]:
        """Give every running sequence one token and return them; those that finish leave.

        Then, while the next iteration would need more KV than there is, the running sequence that
        is last in order goes back to wait. Its KV is lost and its tokens are kept, to be prefilled
        again.
        """
        stepped = self.running
        for sequence in stepped:
            sequence.generated += 1
        self.running = [sequence for sequence in stepped if not sequence.finished]
        while self._next_need() > self.kv_tokens:
            victim = max(self.running, key=lambda running: running.order)
            self.running.remove(victim)
            self.add_sequence(victim)
            self.preemptions += 1
        return stepped

    def _next_need(self) -> Tokens:
        return sum(self._held(sequence.context + 1) for sequence in self.running)

    def _held(self, tokens: Tokens) -> Tokens:
        return -(-tokens // self.block_size) * self.block_size


@dataclass(slots=True)
class _Lease:
    sequences: list[FakeSequence]
    stream: bool
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    outputs: list[Output] = field(default_factory=list)
    """Outputs that were not taken yet."""
    ended_at: Seconds = 0.0
    """Instant at which its call ended."""

    @property
    def obstacle(self) -> str:
        """Reason why a stream of the lease could not go on elsewhere; empty if it could."""
        return "it has more than one sequence" if len(self.sequences) > 1 else ""

    @property
    def finished(self) -> bool:
        return all(sequence.finished for sequence in self.sequences)

    def final_progress(self, now: Seconds) -> Progress:
        return Progress(
            sum(sequence.read_tokens(now) for sequence in self.sequences),
            self.progress.output_tokens,
        )

    @property
    def progress(self) -> Progress:
        return Progress(
            prompt_tokens=sum(sequence.prompt_tokens for sequence in self.sequences),
            output_tokens=sum(sequence.generated for sequence in self.sequences),
        )


_NO_LEASE = _Lease([], stream=False)


class FakeEngine:
    """An `Engine` (see `justitia_ray.protocol.engine`) for tests, demos and benchmarks on CPUs.

    Args:
        served_model_name: The name that callers give as `model`.
        kv_tokens: KV memory in tokens, rounded down to whole blocks.
        block_size: KV is given out in blocks of this many tokens.
        max_num_seqs: Sequences that may run at once.
        max_model_len: Longest prompt plus output; `kv_tokens` if that is less.
        iteration_s: Length of a decode iteration; 0.03 is about that of a 7B model on an A10G.
        prefill_s_per_token: What each prompt token adds to the iteration that admits it.

    Raises:
        ConfigError: If not even a block of KV fits.
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
    ) -> None:
        if kv_tokens < block_size:
            raise ConfigError(
                f"fake engine: kv_tokens is {kv_tokens}; it must be at least {block_size}"
            )
        self._served_model_name = served_model_name
        self._batch = FakeBatch(kv_tokens // block_size * block_size, block_size, max_num_seqs)
        self._max_model_len = min(max_model_len, self._batch.kv_tokens)
        self._iteration_s = iteration_s
        self._prefill_s_per_token = prefill_s_per_token
        self._leases: dict[LeaseId, _Lease] = {}
        self._called: dict[FakeSequence, _Lease] = {}
        """Sequences whose call is open, with their leases; `_leases` also has ended calls."""
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
        """Prompt tokens of all sequences that have made a token, as vLLM counts them."""
        self.made_tokens: Tokens = 0
        self.admitted: list[LeaseId] = []
        """The lease of every sequence in the order of admission, again after a preemption."""

    async def start(self) -> EngineCapacity:
        """Start the decode loop on the running event loop."""
        self._why_dead = None
        self._loop = asyncio.create_task(self._decode())
        return EngineCapacity(
            kv_tokens=self._batch.kv_tokens,
            block_size=self._batch.block_size,
            max_num_seqs=self._batch.max_num_seqs,
            max_model_len=self._max_model_len,
        )

    async def call(self, call: EngineCall) -> AsyncGenerator[ResponseHead | bytes]:
        """Run one call, see `Engine.call`; only chat and text completions are served.

        Raises:
            EngineError: If the engine is dead or stopped, or becomes so meanwhile.
        """
        self.check()
        try:
            request = parse_request(
                call.path, call.body, self._served_model_name, self._max_model_len
            )
        except RequestError as error:
            status, body = error_answer(error)
            yield ResponseHead(status, _JSON)
            yield body
            return
        answer = FakeAnswer(request, self._served_model_name, call.lease_id)
        lease = self._submit(call, request)
        try:
            if request.body.stream:
                yield ResponseHead(200, _EVENT_STREAM)
                if opening := answer.opening():
                    yield opening
                async with aclosing(self._chunks(lease, answer, call.earlier)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                self.check()
                yield answer.closing()
            else:
                await self._change(lease)
                yield ResponseHead(200, _JSON)
                yield answer.body()
        finally:
            lease.ended_at = asyncio.get_running_loop().time()
            for sequence in lease.sequences:
                self._batch.remove_sequence(sequence)
                del self._called[sequence]

    def paths(self) -> frozenset[str]:
        """Return the paths of chats, completions, `/tokenize` and `/detokenize`."""
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
        """Return the outputs behind the chunks of a stream that were not taken yet."""
        lease = self._leases.get(lease_id, _NO_LEASE)
        taken, lease.outputs = tuple(lease.outputs), []
        return taken

    def obstacle(self, lease_id: LeaseId) -> str:
        """Return why a stream could not go on elsewhere; empty if it could."""
        return self._leases.get(lease_id, _NO_LEASE).obstacle

    def progress(self, lease_id: LeaseId) -> Progress:
        """Return the tokens that a call has used so far; zeros if the lease is not known."""
        return self._leases.get(lease_id, _NO_LEASE).progress

    def release(self, lease_id: LeaseId) -> Progress:
        """Forget a lease whose call has ended and return its final progress."""
        lease = self._leases.pop(lease_id, _NO_LEASE)
        return lease.final_progress(lease.ended_at)

    def free_kv_tokens(self) -> Tokens:
        """Return the KV memory that no sequence holds now."""
        return self._batch.free_kv_tokens

    def preemptions(self) -> int:
        """Return how often a sequence was preempted."""
        return self._batch.preemptions

    def check(self) -> None:
        """Return if the engine is alive.

        Raises:
            EngineError: If it is dead, stopped, or was never started.
        """
        if self._why_dead is not None:
            raise EngineError(f"the fake engine does not run: {self._why_dead}")

    def steps(self) -> Steps:
        """Return the iterations so far."""
        return Steps(self._steps, bool(self._batch.running or self._batch.waiting))

    def suspended(self) -> str:
        """Return the name that `stall` has given to what is suspended."""
        return self._suspended

    def stall(self, suspended: str = "") -> None:
        """Make no steps until `go_on`, as an engine does that hangs or whose process is stopped.

        Args:
            suspended: A process that is said to be suspended; empty: it hangs.
        """
        self._suspended = suspended
        self._goes_on.clear()

    def go_on(self) -> None:
        """Make steps again."""
        self._suspended = ""
        self._goes_on.set()

    def kill(self) -> None:
        """Die, as a real engine does whose processes are killed."""
        self._by_itself = False
        self._end("it was killed")

    def died_by_itself(self) -> bool:
        """Return whether what ran on the engine may have killed it, once `check` has raised."""
        return self._by_itself

    def die(self, *, by_itself: bool = True) -> None:
        """Die, by itself or as an engine that is killed: running calls raise EngineError."""
        self._by_itself = by_itself
        self._end("it died")

    async def stop(self) -> None:
        """Stop the decode loop; running calls raise EngineError. Safe to call twice."""
        self._end("it was stopped")
        if self._loop is not None:
            await asyncio.wait([self._loop])

    def _end(self, why: str) -> None:
        self._why_dead = why
        if self._loop is not None:
            self._loop.cancel()
        for lease in self._called.values():
            lease.changed.set()

    def _submit(self, call: EngineCall, request: FakeRequest) -> _Lease:
        sequences = []
        for prompt_tokens in request.prompt_tokens:
            for _ in range(request.body.n):
                sequence = FakeSequence(
                    lease_id=call.lease_id,
                    priority=call.priority,
                    arrival=self._arrivals,
                    prompt_tokens=prompt_tokens,
                    max_tokens=request.max_tokens,
                    generated=sum(len(output.tokens) for output in call.earlier),
                )
                self._arrivals += 1
                if not sequence.finished:
                    self._batch.add_sequence(sequence)
                sequences.append(sequence)
        lease = _Lease(sequences, request.body.stream)
        self._leases[call.lease_id] = lease
        self._called |= dict.fromkeys(sequences, lease)
        self._work.set()
        return lease

    async def _chunks(
        self, lease: _Lease, answer: FakeAnswer, earlier: tuple[Output, ...]
    ) -> AsyncGenerator[bytes]:
        """Yield the tokens of a stream as they come, those of an earlier attempt first."""
        sent = [0] * len(lease.sequences)
        for output in earlier:
            yield answer.events(0, sent[0], output.tokens)
            sent[0] += len(output.tokens)
        while not lease.finished or sent != [s.generated for s in lease.sequences]:
            await self._change(lease)
            events = []
            for k, sequence in enumerate(lease.sequences):
                tokens = answer.tokens(k, sent[k], sequence.generated)
                events.append(answer.events(k, sent[k], tokens))
                sent[k] = sequence.generated
                if not lease.obstacle:
                    end = "length" if sequence.finished else None
                    lease.outputs.append(Output(tokens, end))
            yield b"".join(events)

    async def _change(self, lease: _Lease) -> None:
        """Wait for the next token of a stream, or for the last token of a unary call."""
        await lease.changed.wait()
        lease.changed.clear()
        self.check()

    async def _decode(self) -> None:
        while True:
            admitted = self._batch.admit()
            self.admitted += [sequence.lease_id for sequence in admitted]
            if not self._batch.running:
                self._work.clear()
                await self._work.wait()
                continue
            prefilled = sum(sequence.context for sequence in admitted)
            length_s = self._iteration_s + self._prefill_s_per_token * prefilled
            for sequence in admitted:
                if sequence.prefill_began_at is None:
                    sequence.prefill_began_at = asyncio.get_running_loop().time()
                    sequence.prefill_s = length_s
            await asyncio.sleep(length_s)
            await self._goes_on.wait()
            self._steps += 1
            for sequence in self._batch.step():
                self.made_tokens += 1
                if sequence.generated == 1:
                    self.begun_prompt_tokens += sequence.prompt_tokens
                lease = self._called[sequence]
                if lease.stream or lease.finished:
                    lease.changed.set()
