"""Every error that the project raises on purpose, as a tree cut by who can act on it.

    JustitiaError
    ├── ConfigError                 the operator: a setting, a file, an option
    ├── RequestError                the caller: the request can never succeed as it stands
    │   ├── UnknownModel, UnknownApplication, ContextLengthExceeded
    │   ├── ApplicationIsClosed: ApplicationCancelled, ApplicationExpired
    │   └── UnsupportedOperation, NotServed, BodyTooLarge, UnsupportedEncoding
    ├── Unauthenticated             the caller: it has not proved who it is
    ├── Forbidden                   the caller: its credential does not give it the right
    ├── AdmissionError              the caller, later: the system cannot take it now
    │   ├── QueueFull, TooManyApplications, NoReplicaAnswers, SchedulerSuperseded
    │   ├── QuotaExhausted, ApplicationBudgetExhausted, DeadlineMissed, NotStored
    │   └── TooManyFailures, ApplicationIsEnding
    ├── ConnectionLost              our processes, between themselves: another way, or again
    ├── RemoteFailure               nobody: a mistake of ours in another process, whose log has it
    ├── LeaseError                  ingress and replica, between themselves
    │   └── UnknownLease, LeaseSuperseded
    ├── EngineError                 the replica: its engine is dead or gave no answer
    │   ├── AttemptsExhausted       the caller, later: no replica brought the call to its end
    │   ├── KillsEngines            the caller: engines die of the call
    │   ├── CannotContinue          the caller: a stream was cut and has to be asked for again
    │   └── EngineFailed, StreamUnfinished   the caller: its stream was not brought to its end
    ├── StreamRefused               the caller: the engine refused a stream that had begun
    ├── StoreError                  the operator: Redis cannot be reached, or holds something else
    └── ResponseError               the client: the service answered with an error

Errors cross process boundaries, so every one of them hands its arguments to `Exception` and can be
pickled. The HTTP status of each stands in one table, `justitia_ray.protocol.errors`.
"""

import reprlib
from typing import Any


class _Shown(reprlib.Repr):
    """Shortened values, with the words of JSON and YAML for what has no other form there."""

    def repr_NoneType(self, value: None, level: int) -> str:  # noqa: N802 (found by the type)
        return "null"

    def repr_bool(self, value: bool, level: int) -> str:
        return "true" if value else "false"


_REPR = _Shown()
_REPR.maxstring = _REPR.maxother = 100


def error_class(name: str) -> type["JustitiaError"] | None:
    """Return the error of that name, None if there is none."""
    kind = globals().get(name)
    is_ours = isinstance(kind, type) and issubclass(kind, JustitiaError)
    return kind if is_ours else None


def shown_short(value: object) -> str:
    """Return a value as a message shows it: what callers send may have megabytes."""
    return _REPR.repr(value)


class JustitiaError(Exception):
    """Root of the tree."""


class ConfigError(JustitiaError):
    """A setting, file or option is wrong; the message names it, its value and what is allowed."""


class RequestError(JustitiaError):
    """The request can never succeed as it stands.

    Attributes:
        message: What is wrong and what is allowed.
        param: The field of the request body that is wrong, if it is one.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message, param)
        self.message = message
        self.param = param

    def __str__(self) -> str:
        return self.message


class UnknownModel(RequestError):
    """No model of that name is served here."""


class UnknownApplication(RequestError):
    """No application of that id is open."""


class ApplicationIsClosed(RequestError):
    """The application was closed, cancelled or expired, and takes no more inferences."""


class ApplicationCancelled(ApplicationIsClosed):
    """The application was cancelled, and takes no more inferences."""


class ApplicationExpired(ApplicationIsClosed):
    """The application was idle for too long, and takes no more inferences."""


class ContextLengthExceeded(RequestError):
    """The prompt, or the prompt and the output asked for, exceed the model's context."""


class UnsupportedOperation(RequestError):
    """Something that vLLM could do but this service refuses, with the reason."""


class NotServed(RequestError):
    """The model has no answer on this path, e.g. one that generates has no embeddings."""


class BodyTooLarge(RequestError):
    """The request's body is longer than is read."""


class UnsupportedEncoding(RequestError):
    """The request's body has a content coding that is not decoded here."""


class Unauthenticated(JustitiaError):
    """The caller has not proved who it is; the message never shows what it sent."""


class Forbidden(JustitiaError):
    """The caller is known, and may not do this.

    Attributes:
        message: What is not allowed, and what is.
        code: Code of the answer.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message, code)
        self.message = message
        self.code = code

    def __str__(self) -> str:
        return self.message


class AdmissionError(JustitiaError):
    """The system cannot take the request now.

    Attributes:
        message: What is short.
        retry_after_s: When to try again, in seconds; None: not known, or never.
        limit: The limit that binds, if it is one: the fields of a `core.limits.LimitStanding`.
    """

    def __init__(
        self,
        message: str,
        retry_after_s: float | None = 1.0,
        limit: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message, retry_after_s, limit)
        self.message = message
        self.retry_after_s = retry_after_s
        self.limit = limit

    def __str__(self) -> str:
        return self.message


class QueueFull(AdmissionError):
    """As many inferences wait as the configuration allows."""


class TooManyApplications(AdmissionError):
    """As many applications are open as the configuration allows."""


class TooManyFailures(AdmissionError):
    """Too many calls with wrong credentials wait for their answers; another is not looked at."""


class QuotaExhausted(AdmissionError):
    """A quota of the tenant, or of a node above it, has nothing left in its period."""


class ApplicationBudgetExhausted(AdmissionError):
    """The application has used up what one application of its tenant may use."""


class DeadlineMissed(AdmissionError):
    """The call cannot be served before its deadline, or was not."""


class ApplicationIsEnding(AdmissionError):
    """Whether the application is over is not known yet; its id can be used again once it is."""


class NotStored(AdmissionError):
    """Redis did not store the application in time."""


class NoReplicaAnswers(AdmissionError):
    """No replica has answered a call that needs no lease."""


class SchedulerSuperseded(AdmissionError):
    """The scheduler that was asked is no longer the leader, and serves nobody."""


class ConnectionLost(JustitiaError):
    """A connection between two of our processes is lost, refused, or cannot be opened."""


class RemoteFailure(JustitiaError):
    """A process has failed to answer a call, by a mistake of ours; its log has the traceback."""


class LeaseError(JustitiaError):
    """A lease does not hold (any more).

    Attributes:
        lease_id: The lease.
        replica_id: Where it was to run.
    """

    def __init__(self, lease_id: str, replica_id: str) -> None:
        super().__init__(lease_id, replica_id)
        self.lease_id = lease_id
        self.replica_id = replica_id


class UnknownLease(LeaseError):
    """The replica does not hold this lease: it expired, was aborted or never arrived."""

    def __str__(self) -> str:
        return f"replica {self.replica_id} does not hold lease {self.lease_id}"


class LeaseSuperseded(LeaseError):
    """The scheduler has taken this lease back, and granted another one for its inference."""

    def __str__(self) -> str:
        return f"lease {self.lease_id} on replica {self.replica_id} was replaced by another"


class EngineError(JustitiaError):
    """The engine is dead, or ended a call without an answer."""


class AttemptsExhausted(EngineError):
    """A call used up its attempts, and no replica brought it to its end."""


class KillsEngines(EngineError):
    """Engines died under a call, and under no other each time: it is not run again."""


class CannotContinue(EngineError):
    """A stream was cut, and no other engine can go on where it ended; the message says why."""


class EngineFailed(EngineError):
    """The engine ended a stream with an error event of its own, which the caller has read."""


class StreamUnfinished(EngineError):
    """The engine ended a stream without the event that ends a whole one."""


class StreamRefused(JustitiaError):
    """The engine refused a call whose stream had begun, to keep its caller's connection alive.

    Attributes:
        status: HTTP status of the engine's answer.
        error: The engine's error, in the form of OpenAI's API; not in the message, which is logged.
    """

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(status, error)
        self.status = status
        self.error = error

    def __str__(self) -> str:
        return f"the engine answered with status {self.status} after the stream had begun"


class StoreError(JustitiaError):
    """Redis cannot be reached, refuses, or holds what this version cannot read."""


class ResponseError(JustitiaError):
    """The service answered a client's call with an error.

    Attributes:
        status: HTTP status.
        message: What the service said.
        code: The service's error code, e.g. `context_length_exceeded`, if it gave one.
        retry_after_s: When to try again, if the service said so.
        dropped_reason: Why the call was dropped, one of `protocol.refusals.DropReason`, if given.
        limit: The limit that binds, if one was named: scope, unit, limit, remaining, `reset_s`,
            `period_s`.
        should_retry: Whether another try makes sense, if the service said so.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        retry_after_s: float | None = None,
        dropped_reason: str | None = None,
        limit: dict[str, Any] | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(status, message, code, retry_after_s, dropped_reason, limit, should_retry)
        self.status = status
        self.message = message
        self.code = code
        self.retry_after_s = retry_after_s
        self.dropped_reason = dropped_reason
        self.limit = limit
        self.should_retry = should_retry

    def __str__(self) -> str:
        return f"{self.status}: {self.message}"
