"""States of applications, inferences and leases, and the transitions that are allowed."""

from collections.abc import Mapping
from enum import StrEnum


class InvalidTransition(Exception):
    """A state transition that is not in the table: a bug, never an answer to a caller."""


class ApplicationState(StrEnum):
    """States of an application; `APPLICATION_TRANSITIONS` has the transitions between them.

    An application is settled while it has no inferences, unless it was restored and some may be
    submitted again. A settled application leaves GPS with the next report.
    """

    takes_inferences: bool
    """Whether an application in this state accepts new inferences."""
    is_cancelled: bool
    """Whether the owner has cancelled the application."""
    is_settled: bool
    """Whether the application has no inferences and expects none to be submitted again."""

    def __new__(
        cls, name: str, takes_inferences: bool, is_cancelled: bool, is_settled: bool
    ) -> "ApplicationState":
        """Create a member whose value is its name; the three flags are plain attributes."""
        state = str.__new__(cls, name)
        state._value_ = name
        state.takes_inferences = takes_inferences
        state.is_cancelled = is_cancelled
        state.is_settled = is_settled
        return state

    OPENING = "opening", False, False, False
    """The application was created, without an account yet."""
    RECOVERING = "recovering", True, False, False
    """The application was restored from a snapshot. Its inferences may be submitted again, so it
    stays in GPS.
    """
    IDLE = "idle", True, False, True
    """The application accepts inferences and has none."""
    OPEN = "open", True, False, False
    """The application accepts inferences and has some."""
    CLOSING = "closing", False, False, False
    """The owner closed the application while it had inferences, or while it was restored."""
    CLOSED = "closed", False, False, True
    """The application is closed and has no inferences. An ingress may still submit inferences that
    an earlier scheduler had.
    """
    STOPPING = "stopping", False, True, False
    """The owner cancelled the application, and replicas have not sent their last reports."""
    STOPPED = "stopped", False, True, True
    """The application is cancelled and has no inferences. An ingress may still report inferences
    that ended under an earlier scheduler.
    """
    ENDED = "ended", False, False, False

    @property
    def public_name(self) -> str:
        """Return the state's name in the API, the CLI and the store: `open` or `closing`."""
        return "open" if self.takes_inferences else "closing"


_A = ApplicationState

APPLICATION_TRANSITIONS: Mapping[tuple[ApplicationState, ApplicationState], str] = {
    (_A.OPENING, _A.IDLE): "opened",
    (_A.OPENING, _A.RECOVERING): "restored from a snapshot",
    (_A.RECOVERING, _A.OPEN): "an inference is submitted",
    (_A.RECOVERING, _A.IDLE): "nothing is submitted within ingress_s",
    (_A.RECOVERING, _A.CLOSING): "closed, here or before",
    (_A.RECOVERING, _A.STOPPING): "cancelled",
    (_A.RECOVERING, _A.ENDED): "idle for too long",
    (_A.IDLE, _A.OPEN): "an inference is submitted",
    (_A.IDLE, _A.CLOSED): "closed",
    (_A.IDLE, _A.STOPPED): "cancelled",
    (_A.IDLE, _A.ENDED): "idle for too long",
    (_A.OPEN, _A.IDLE): "its last inference ends",
    (_A.OPEN, _A.CLOSING): "closed",
    (_A.OPEN, _A.STOPPING): "cancelled",
    (_A.CLOSING, _A.OPEN): "opened again",
    (_A.CLOSING, _A.RECOVERING): "opened again, and nothing was submitted since the restart",
    (_A.CLOSING, _A.CLOSED): "its last inference ends, or none is submitted within ingress_s",
    (_A.CLOSING, _A.STOPPING): "cancelled",
    (_A.CLOSING, _A.ENDED): "nothing is left and no ingress is awaited, or idle for too long",
    (_A.CLOSED, _A.CLOSING): "an ingress submits an inference that an earlier scheduler had",
    (_A.CLOSED, _A.IDLE): "opened again",
    (_A.CLOSED, _A.STOPPED): "cancelled",
    (_A.CLOSED, _A.ENDED): "no ingress is awaited, or idle for too long",
    (_A.STOPPING, _A.STOPPED): "its last inference ends, or none is submitted within ingress_s",
    (_A.STOPPING, _A.ENDED): "nothing is left and no ingress is awaited, or idle for too long",
    (_A.STOPPED, _A.STOPPING): "an ingress brings an end or a lease of an earlier scheduler",
    (_A.STOPPED, _A.ENDED): "no ingress is awaited, or idle for too long",
}
"""Every transition of an application's state, and when it happens."""

BUSY: Mapping[ApplicationState, ApplicationState] = {
    _A.RECOVERING: _A.OPEN,
    _A.IDLE: _A.OPEN,
    _A.CLOSED: _A.CLOSING,
    _A.STOPPED: _A.STOPPING,
}
"""Next state by present state when an inference is submitted; in other states nothing changes."""

SETTLED: Mapping[ApplicationState, ApplicationState] = {
    _A.OPENING: _A.IDLE,
    _A.RECOVERING: _A.IDLE,
    _A.OPEN: _A.IDLE,
    _A.CLOSING: _A.CLOSED,
    _A.STOPPING: _A.STOPPED,
}
"""Next state by present state when an application has no inferences left."""


class InferenceState(StrEnum):
    """States of an inference; `TRANSITIONS` has the transitions between them."""

    WAITING = "waiting"
    SUSPENDED = "suspended"
    """The inference is not in the queue because its ingress may be lost."""
    CLAIMED = "claimed"
    """The inference runs under a lease of an earlier scheduler, as its ingress says, but no replica
    has confirmed it.
    """
    LEASED = "leased"
    RUNNING = "running"
    ENDED = "ended"

    @property
    def public_name(self) -> str:
        """Return the name in the scheduler's report: suspended and claimed count as waiting."""
        return _I.WAITING.value if self in (_I.SUSPENDED, _I.CLAIMED) else self.value


_I = InferenceState

TRANSITIONS: Mapping[tuple[InferenceState, InferenceState], str] = {
    (_I.WAITING, _I.LEASED): "granted to a replica, or its lease of an earlier scheduler is found",
    (_I.WAITING, _I.SUSPENDED): "its ingress is suspect",
    (_I.WAITING, _I.CLAIMED): "its lease of an earlier scheduler is to be confirmed",
    (_I.WAITING, _I.ENDED): "cancelled or expired while waiting",
    (_I.SUSPENDED, _I.WAITING): "its ingress called",
    (_I.SUSPENDED, _I.ENDED): "cancelled, or its ingress is lost",
    (_I.CLAIMED, _I.LEASED): "a replica reports its lease",
    (_I.CLAIMED, _I.WAITING): "no replica reports its lease in time",
    (_I.CLAIMED, _I.ENDED): "cancelled, or its ingress is lost",
    (_I.LEASED, _I.RUNNING): "its payload reached the replica",
    (_I.LEASED, _I.WAITING): "lease expired or nacked, or its replica is gone",
    (_I.LEASED, _I.ENDED): "cancelled before its payload came, or too short to be seen running",
    (_I.RUNNING, _I.WAITING): "its replica or engine died",
    (_I.RUNNING, _I.ENDED): "finished, failed or cancelled",
}
"""Every transition of an inference's state, and when it happens."""


class LeaseState(StrEnum):
    """Whether the payload of a lease has reached its replica."""

    GRANTED = "granted"
    RUNNING = "running"
