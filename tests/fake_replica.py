"""A replica as the core sees one: leases it holds, tokens it has made, pulls it sends."""

from dataclasses import dataclass, field

from justitia_ray.core import events as ev
from justitia_ray.core.entities import Outcome, ReplicaCapacity
from justitia_ray.units import LeaseId, ReplicaId, Tokens


@dataclass
class Held:
    """A lease on the replica."""

    prompt: Tokens
    output: Tokens
    """How long it will be; the scheduler does not know."""
    running: bool = False
    made: Tokens = 0
    cached: Tokens | None = None
    """Prompt tokens that it finds in the cache, which it says with its first token."""

    @property
    def read_tokens(self) -> Tokens:
        """Prompt tokens that are read: half of them if it runs and has no token yet."""
        if self.made:
            return self.prompt
        return self.prompt // 2 if self.running else 0

    @property
    def known_cached(self) -> Tokens | None:
        """What it has said of the cache so far."""
        return self.cached if self.made else None


@dataclass
class FakeReplica:
    """Makes the tokens that it is told to make."""

    replica_id: ReplicaId
    capacity: ReplicaCapacity
    held: dict[LeaseId, Held] = field(default_factory=dict)
    ended: list[ev.LeaseFinished] = field(default_factory=list)
    """Since the last pull."""
    draining: bool = False

    def start_all(self) -> None:
        """Let the payload of every lease come."""
        for held in self.held.values():
            held.running = True

    def make(self, lease_id: LeaseId, tokens: Tokens) -> None:
        """Let a running lease make up to so many tokens, and end if that is all."""
        held = self.held[lease_id]
        if held.running:
            held.made = min(held.output, held.made + tokens)
            if held.made == held.output:
                self.end(lease_id, Outcome.FINISHED)

    def end(self, lease_id: LeaseId, outcome: Outcome | None) -> None:
        """Say the last word on a lease in the next pull."""
        held = self.held.pop(lease_id)
        self.ended.append(
            ev.LeaseFinished(
                lease_id, held.prompt, held.made, outcome, cached_tokens=held.known_cached
            )
        )

    def abort(self, lease_id: LeaseId) -> Held | None:
        """Stop a lease, if it is held, and say in the next pull what it has used."""
        held = self.held.pop(lease_id, None)
        if held is not None:
            end = ev.LeaseFinished(
                lease_id, held.read_tokens, held.made, None, cached_tokens=held.known_cached
            )
            self.ended.append(end)
        return held

    def pull(self, *, whole: bool = True) -> ev.ReplicaPulled:
        """Return the report of all that ended, and, if `whole`, of all that it holds."""
        used = sum(held.prompt + held.made for held in self.held.values() if held.running)
        ended, self.ended = self.ended, []
        return ev.ReplicaPulled(
            self.replica_id,
            self.capacity,
            max(0, self.capacity.kv_tokens - used),
            tuple(
                ev.LeaseProgress(name, held.prompt, held.made, held.running, held.known_cached)
                for name, held in self.held.items()
            )
            if whole
            else None,
            tuple(ended),
            self.draining,
        )
