"""Interface of a scheduler of sessions (an arm): it decides where and when their turns run."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from justitia_ray.sim.sessions.replica import SessionReplica, TurnSequence
from justitia_ray.sim.sessions.trace import Session, Turn, TurnContent
from justitia_ray.units import Seconds, Tokens

NEVER: Seconds = float("inf")


@dataclass(slots=True, eq=False)
class TurnCall:
    """A submitted turn of a recorded session."""

    session: Session
    place: int
    content: TurnContent
    sequence: TurnSequence | None = None
    """Sequence of the turn in its engine; None until the turn starts."""
    lease_id: str = ""

    @property
    def turn(self) -> Turn:
        """The recorded turn that is submitted."""
        return self.session.turns[self.place]

    @property
    def name(self) -> str:
        """Unique name of the turn: session and index."""
        return f"{self.session.name}/{self.place}"

    @property
    def cached_tokens(self) -> Tokens:
        """Prompt tokens found in the GPU's or the host's memory; 0 before the turn starts."""
        return self.sequence.found_tokens if self.sequence else 0

    @property
    def recomputed_tokens(self) -> Tokens:
        """Tokens of the turn that its engine computed again after preemptions."""
        return self.sequence.recomputed if self.sequence else 0


class Start(NamedTuple):
    """A turn of a session that starts in an engine now."""

    replica: SessionReplica
    call: TurnCall
    priority: int = 0
    """Priority in an engine with the policy `priority`: lower is admitted first."""


class SessionArm(ABC):
    """A scheduler of sessions: decides where and when their turns run.

    An arm knows what a server knows: prompts, outputs of finished turns, and times, but neither the
    later turns of a session nor the length of a gap before the gap has ended.
    """

    wakes_at: Seconds = NEVER
    """Time at which `wake` is called next."""

    def open(self, session: Session, now: Seconds) -> None:  # noqa: B027
        """Register a beginning session, in schedulers with state of sessions."""

    @abstractmethod
    def submit(self, call: TurnCall, now: Seconds) -> Iterable[Start]:
        """Submit a turn; return the turns that start now."""

    def hold(self, replica: SessionReplica, call: TurnCall, now: Seconds) -> None:  # noqa: B027
        """Keep an ended turn's prompt in the replica's cache, if the scheduler wants this.

        Called before its engine plans further.
        """

    def finish(
        self, replica: SessionReplica, calls: Sequence[TurnCall], now: Seconds
    ) -> Iterable[Start]:
        """Report ended turns of a replica; return the turns that start now."""
        return ()

    def close(self, session: Session, now: Seconds) -> Iterable[Start]:
        """Report an ended session; return the turns that start now."""
        return ()

    def wake(self, now: Seconds) -> Iterable[Start]:
        """Act at the time `wakes_at`; return the turns that start now."""
        return ()
