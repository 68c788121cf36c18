"""Replica as the core sees it: its leases, the tokens it has made, and its pulls."""

from dataclasses import dataclass, field

from justitia_ray.core import events as ev
from justitia_ray.core.entities import Outcome, ReplicaCapacity
from justitia_ray.units import LeaseId, ReplicaId, Tokens


@dataclass
class HeldLease:
    """Lease of a fake replica, with the tokens that it has produced so far."""

    prompt: Tokens
    output: Tokens
    """True output length in tokens, unknown to the scheduler."""
    running: bool = False
    made: Tokens = 0
    cached: Tokens | None = None
    """Prompt tokens found in the prefix cache, reported with the first token."""
    recomputed: Tokens = 0
    """Tokens that were computed again after preemptions."""

    @property
    def read_tokens(self) -> Tokens:
        """Prompt tokens prefilled so far: half of the prompt until the first output token."""
        if self.made:
            return self.prompt
        return self.prompt // 2 if self.running else 0

    @property
    def known_cached(self) -> Tokens | None:
        """Cached tokens of the prompt that have been reported so far."""
        return self.cached if self.made else None


@dataclass
class FakeReplica:
    """Fake replica that produces tokens only when a test calls it."""

    replica_id: ReplicaId
    capacity: ReplicaCapacity
    held: dict[LeaseId, HeldLease] = field(default_factory=dict)
    ended: list[ev.LeaseFinished] = field(default_factory=list)
    """Leases that ended since the last pull."""
    draining: bool = False

    def start_all(self) -> None:
        """Start the inference of every lease."""
        for held in self.held.values():
            held.running = True

    def make(self, lease_id: LeaseId, tokens: Tokens) -> None:
        """Produce up to `tokens` output tokens under a lease; end the lease if it is complete.

        An even number of tokens after the first comes with a preemption.
        """
        held = self.held[lease_id]
        if held.running:
            if held.made and not tokens % 2:
                held.recomputed += held.prompt + held.made
            held.made = min(held.output, held.made + tokens)
            if held.made == held.output:
                self.end(lease_id, Outcome.FINISHED)

    def end(self, lease_id: LeaseId, outcome: Outcome | None) -> None:
        """Report the end of a lease in the next pull."""
        held = self.held.pop(lease_id)
        self.ended.append(
            ev.LeaseFinished(
                lease_id,
                held.prompt,
                held.made,
                outcome,
                cached_tokens=held.known_cached,
                recomputed_tokens=held.recomputed,
            )
        )

    def abort(self, lease_id: LeaseId) -> HeldLease | None:
        """Abort a lease if the replica holds it, and report its tokens in the next pull."""
        held = self.held.pop(lease_id, None)
        if held is not None:
            end = ev.LeaseFinished(
                lease_id,
                held.read_tokens,
                held.made,
                None,
                cached_tokens=held.known_cached,
                recomputed_tokens=held.recomputed,
            )
            self.ended.append(end)
        return held

    def pull(self, *, whole: bool = True) -> ev.ReplicaPulled:
        """Return a pull with all ended leases and, if `whole`, all running ones."""
        used = sum(held.prompt + held.made for held in self.held.values() if held.running)
        ended, self.ended = self.ended, []
        return ev.ReplicaPulled(
            self.replica_id,
            self.capacity,
            max(0, self.capacity.kv_tokens - used),
            tuple(
                ev.LeaseProgress(
                    name,
                    held.prompt,
                    held.made,
                    held.running,
                    held.known_cached,
                    held.recomputed,
                )
                for name, held in self.held.items()
            )
            if whole
            else None,
            tuple(ended),
            self.draining,
        )
