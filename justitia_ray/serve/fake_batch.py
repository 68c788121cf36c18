"""Continuous batching in a bounded KV memory, as vLLM does it; synchronous, no time in it."""

from bisect import insort
from dataclasses import dataclass, field

from justitia_ray.units import LeaseId, Tokens


@dataclass(slots=True, eq=False)
class FakeSequence:
    """One choice of one prompt."""

    lease_id: LeaseId
    priority: int
    arrival: int
    """Rank of arrival among all sequences; it stays through preemptions."""
    prompt_tokens: Tokens
    max_tokens: Tokens
    generated: Tokens = 0

    @property
    def order(self) -> tuple[int, int]:
        """Lower is admitted first and preempted last."""
        return self.priority, self.arrival

    @property
    def context(self) -> Tokens:
        """Tokens whose KV it holds while it runs, and that its prefill has to compute."""
        return self.prompt_tokens + self.generated

    @property
    def finished(self) -> bool:
        """Whether all its tokens are made."""
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
    """In the order of admission."""
    preemptions: int = 0

    @property
    def free_kv_tokens(self) -> Tokens:
        """KV memory that no running sequence holds."""
        return self.kv_tokens - sum(self._held(sequence.context) for sequence in self.running)

    def add(self, sequence: FakeSequence) -> None:
        """Queue a sequence, new or preempted."""
        insort(self.waiting, sequence, key=lambda waiting: waiting.order)

    def remove(self, sequence: FakeSequence) -> None:
        """Drop a sequence wherever it is; nothing happens if it has ended."""
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
            self.add(victim)
            self.preemptions += 1
        return stepped

    def _next_need(self) -> Tokens:
        return sum(self._held(sequence.context + 1) for sequence in self.running)

    def _held(self, tokens: Tokens) -> Tokens:
        return -(-tokens // self.block_size) * self.block_size
