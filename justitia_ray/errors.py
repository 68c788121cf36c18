"""All errors that the project raises on purpose, grouped by the party that can act on them.

    JustitiaError
    ├── ConfigError                 the operator: a setting, a file, an option
    ├── RequestError                the caller: the request can never succeed as it stands
    │   ├── UnknownModel, UnknownApplication, ContextLengthExceeded
    │   ├── ApplicationIsClosed: ApplicationCancelled, ApplicationExpired
    │   └── UnsupportedOperation, NotServed, BodyTooLarge, UnsupportedEncoding
    ├── Unauthenticated             the caller: its credential is missing or not valid
    ├── Forbidden                   the caller: its credential lacks the right
    ├── AdmissionError              the caller, later: the system cannot accept it now
    │   ├── QueueFull, TooManyApplications, NoReplicaAnswers, SchedulerSuperseded
    │   ├── QuotaExhausted, ApplicationBudgetExhausted, DeadlineMissed, NotStored
    │   └── TooManyFailures, ApplicationIsEnding, TooManyViewers, ConsoleIsBusy
    ├── ConnectionLost              processes of the service: retry, or another route
    ├── RemoteFailure               a bug in another process of the service, see its log
    ├── LeaseError                  ingress and replica
    │   └── UnknownLease, LeaseSuperseded
    ├── EngineError                 the replica: its engine is dead or gave no answer
    │   ├── AttemptsExhausted       the caller, later: no replica completed the call
    │   ├── KillsEngines            the caller: the call kills engines
    │   ├── CannotContinue          the caller: a stream was cut and must be requested again
    │   └── EngineFailed, StreamUnfinished   the caller: its stream was not completed
    ├── StreamRefused               the caller: the engine refused a stream that had begun
    ├── StoreError                  the operator: Redis cannot be reached, or holds other data
    └── ResponseError               the client: the service answered with an error

Errors cross process boundaries, so each passes its arguments to `Exception` and can be pickled.
The HTTP status of each is in the table `justitia_ray.protocol.errors`.
"""

import reprlib
from typing import Any


class _Shown(reprlib.Repr):
    def repr_NoneType(self, value: None, level: int) -> str:  # noqa: N802 (reprlib looks for this name)
        return "null"

    def repr_bool(self, value: bool, level: int) -> str:
        return "true" if value else "false"


_REPR = _Shown()
_REPR.maxstring = _REPR.maxother = 100


def error_class(name: str) -> type["JustitiaError"] | None:
    kind = globals().get(name)
    is_ours = isinstance(kind, type) and issubclass(kind, JustitiaError)
    return kind if is_ours else None


def shown_short(value: object) -> str:
    """Return a value as a short text for a message, because callers may send megabytes."""
    return _REPR.repr(value)


class JustitiaError(Exception):
    """Base class of all errors of this project."""


class ConfigError(JustitiaError):
    """A setting, file or option is wrong; the message names it, its value and what is allowed."""


class RequestError(JustitiaError):
    """The request can never succeed unchanged.

    Attributes:
        message: What is wrong and what is allowed.
        param: The wrong field of the request body, if a field is wrong.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message, param)
        self.message = message
        self.param = param

    def __str__(self) -> str:
        return self.message


class UnknownModel(RequestError):
    """No model with this name is served."""


class UnknownApplication(RequestError):
    """No application with this id is open."""


class ApplicationIsClosed(RequestError):
    """The application is closed, cancelled or expired, and accepts no more inferences."""


class ApplicationCancelled(ApplicationIsClosed):
    """The application was cancelled, and accepts no more inferences."""


class ApplicationExpired(ApplicationIsClosed):
    """The application was idle for too long, and accepts no more inferences."""


class ContextLengthExceeded(RequestError):
    """The prompt, or prompt plus requested output, exceeds the model's context length."""


class UnsupportedOperation(RequestError):
    """The service refuses a feature of vLLM that the request uses; the message says why."""


class NotServed(RequestError):
    """The model does not serve this path; a generating model, for example, has no embeddings."""


class BodyTooLarge(RequestError):
    """The body of the request exceeds the size limit."""


class UnsupportedEncoding(RequestError):
    """The body of the request has an unsupported content coding."""


class Unauthenticated(JustitiaError):
    """The caller's credential is missing or not valid; the message never contains it."""


class Forbidden(JustitiaError):
    """The caller is known, but its credential lacks the right.

    Attributes:
        message: What is not allowed, and what is.
        code: Error code of the answer.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message, code)
        self.message = message
        self.code = code

    def __str__(self) -> str:
        return self.message


class AdmissionError(JustitiaError):
    """The service cannot accept the request now.

    Attributes:
        message: The resource that is short.
        retry_after_s: Time until a retry makes sense, in seconds; None: not known, or never.
        limit: The limit that applies, if any: the fields of a `core.limits.LimitStanding`.
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
    """The maximum number of waiting inferences is reached."""


class TooManyApplications(AdmissionError):
    """The maximum number of open applications is reached."""


class TooManyFailures(AdmissionError):
    """Too many calls with wrong credentials are waiting; this one is not checked."""


class TooManyViewers(AdmissionError):
    """The maximum number of viewers of the console is reached."""


class ConsoleIsBusy(AdmissionError):
    """The console is already computing another estimate."""


class QuotaExhausted(AdmissionError):
    """A quota of the tenant, or of one of its ancestors, is exhausted for this period."""


class ApplicationBudgetExhausted(AdmissionError):
    """The application has used up the budget that its tenant allows one application."""


class DeadlineMissed(AdmissionError):
    """The call could not be served before its deadline, or cannot be."""


class ApplicationIsEnding(AdmissionError):
    """A new scheduler does not know yet whether the application has ended; retry later."""


class NotStored(AdmissionError):
    """Redis did not store the application within the time limit."""


class NoReplicaAnswers(AdmissionError):
    """No replica answered a call that may go to any replica."""


class SchedulerSuperseded(AdmissionError):
    """The called scheduler is no longer the leader, and serves no calls."""


class ConnectionLost(JustitiaError):
    """A connection between two processes of the service is lost, or cannot be opened."""


class RemoteFailure(JustitiaError):
    """A call to another process of the service failed through a bug, which its log describes."""


class LeaseError(JustitiaError):
    """A lease, the grant to run an inference on a replica, is not valid or no longer valid.

    Attributes:
        lease_id: The lease.
        replica_id: The replica to which it was granted.
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
    """The scheduler has revoked this lease and granted another one to its inference."""

    def __str__(self) -> str:
        return f"lease {self.lease_id} on replica {self.replica_id} was replaced by another"


class EngineError(JustitiaError):
    """The engine is dead, or ended a call without an answer."""


class AttemptsExhausted(EngineError):
    """A call was tried the maximum number of times, and no replica completed it."""


class KillsEngines(EngineError):
    """Several engines died while they ran this call and no other call; it is not run again."""


class CannotContinue(EngineError):
    """A stream was cut and no other engine can continue it; the message gives the reason."""


class EngineFailed(EngineError):
    """The engine ended a stream with an error event, which was sent to the caller."""


class StreamUnfinished(EngineError):
    """The engine ended a stream without its final event."""


class StreamRefused(JustitiaError):
    """The engine refused a stream after its first bytes had been sent to the caller.

    Attributes:
        status: HTTP status of the engine's answer, or that of its error.
        error: The engine's error, in the form of OpenAI's API; not in the message, which is logged.
    """

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(status, error)
        self.status = status
        self.error = error

    def __str__(self) -> str:
        return f"the engine answered with status {self.status} after the stream had begun"


class StoreError(JustitiaError):
    """Redis is unreachable, refuses a command, or has data that this version cannot read."""


class ResponseError(JustitiaError):
    """The service answered a client's call with an error.

    Attributes:
        status: HTTP status.
        message: Message of the service.
        code: The service's error code, for example `context_length_exceeded`; None if it gave none.
        retry_after_s: Time until a retry makes sense, in seconds; None if the service gave none.
        dropped_reason: Reason why the call was dropped, a `protocol.refusals.DropReason`; None if
            not given.
        limit: The limit that applies, if given: scope, unit, limit, remaining, `reset_s`,
            `period_s`.
        should_retry: Whether a retry makes sense; None if the service did not say.
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
