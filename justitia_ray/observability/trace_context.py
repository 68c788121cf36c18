"""W3C trace contexts, and the one that all calls of an application share.

An application's trace id, the id of its own span and whether it is traced are hashes of its name:
every ingress process comes to the same without a word between them. BLAKE2b of
`NAME|TENANT|APPLICATION` with 24 bytes: the first 16 are the trace id; the last 8, mixed with a
hash of the model's name, the span id, for an application has a span at each model that it calls. It
is traced if the lower 64 bits of the trace id are below `sample_ratio`·2⁶⁴, as OpenTelemetry's own
sampler by ratio has it. An id that is used again has the same trace again.
"""

import re
from hashlib import blake2b
from typing import NamedTuple

from justitia_ray.application_key import SEPARATOR
from justitia_ray.units import ApplicationId

TRACEPARENT = "traceparent"
"""Header of W3C Trace Context."""
_LOWER_64_BITS = (1 << 64) - 1
# A later version may add fields behind those of version 00.
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 0x01
_FIRST_VERSION, _NOT_SAMPLED = "00-", "-00"
"""Begin and end of a header without flags; one of a later version may go on behind its flags."""


class TraceContext(NamedTuple):
    """A span, as its children and other traces name it."""

    trace_id: int
    span_id: int
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        """The header by which a callee's spans become children of this one."""
        flags = _SAMPLED if self.is_sampled else 0
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{flags:02x}"


def read_traceparent(text: str | None) -> TraceContext | None:
    """Return the context of a `traceparent` header; None if there is none, or it is malformed."""
    found = _TRACEPARENT.fullmatch(text or "")
    if found is None:
        return None
    version, *fields, more = found.groups()
    trace_id, span_id, flags = (int(one, 16) for one in fields)
    if version == "ff" or (version == "00" and more) or not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, bool(flags & _SAMPLED))


def read_sampled(text: str | None) -> TraceContext | None:
    """Return the context of a `traceparent` header if its span is traced; else None.

    Nearly all headers say that it is not; to read the rest of those would take 1 µs of each call.
    """
    if text is None or (text.startswith(_FIRST_VERSION) and text.endswith(_NOT_SAMPLED)):
        return None
    context = read_traceparent(text)
    return context if context is not None and context.is_sampled else None


class ApplicationSampler:
    """Tells the trace of each application, and whether it is traced."""

    def __init__(self, name: str, model: str, sample_ratio: float) -> None:
        """Prepare.

        Args:
            name: `name` of the arguments: two services that share a collector share no trace.
            model: The model's name: of several models, each has a span of the application.
            sample_ratio: Share of the applications that are traced, 0 to 1.
        """
        self._name = name
        self._of_model = int.from_bytes(blake2b(model.encode(), digest_size=8).digest())
        self._below = round(sample_ratio * (_LOWER_64_BITS + 1))

    def context(self, application_id: ApplicationId) -> TraceContext:
        """Return the context of an application's own span, given its key."""
        name = f"{self._name}{SEPARATOR}{application_id}".encode()
        digest = blake2b(name, digest_size=24).digest()
        trace_id = int.from_bytes(digest[:16])
        is_sampled = trace_id & _LOWER_64_BITS < self._below
        span_id = int.from_bytes(digest[16:]) ^ self._of_model
        return TraceContext(trace_id, span_id or 1, is_sampled)
