"""W3C trace contexts, and the trace context that all calls of an application share.

An application's trace id, the id of its own span and whether it is traced are hashes of its name,
so every ingress process computes the same values without communication. BLAKE2b of
`NAME|TENANT|APPLICATION` gives 24 bytes. The first 16 are the trace id. The last 8, mixed with a
hash of the model's name, are the span id, because an application has a span at each model that it
calls. An application is traced if the lower 64 bits of the trace id are below `sample_ratio`·2⁶⁴,
the rule of OpenTelemetry's ratio sampler. A reused application id has the same trace again.
"""

import re
from hashlib import blake2b
from typing import NamedTuple

from justitia_ray.application_key import SEPARATOR
from justitia_ray.units import ApplicationId

TRACEPARENT = "traceparent"
"""Name of the W3C Trace Context header."""
_LOWER_64_BITS = (1 << 64) - 1
# Versions of the header after 00 may append fields.
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 0x01
_FIRST_VERSION, _NOT_SAMPLED = "00-", "-00"
"""Version 00 of the `traceparent` header, and the flags of a span that is not sampled."""


class TraceContext(NamedTuple):
    """Identity of a span: trace id, span id, and whether it is sampled."""

    trace_id: int
    span_id: int
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        """Value of the `traceparent` header that makes this span the parent of a callee's spans."""
        flags = _SAMPLED if self.is_sampled else 0
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{flags:02x}"


def read_traceparent(text: str | None) -> TraceContext | None:
    """Return the context of a `traceparent` header; None if it is missing or malformed."""
    found = _TRACEPARENT.fullmatch(text or "")
    if found is None:
        return None
    version, *fields, more = found.groups()
    trace_id, span_id, flags = (int(one, 16) for one in fields)
    if version == "ff" or (version == "00" and more) or not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, bool(flags & _SAMPLED))


def read_sampled(text: str | None) -> TraceContext | None:
    """Return the context of a `traceparent` header; None if its span is not sampled.

    Nearly all callers' spans are not sampled; parsing their headers fully would take 1 µs per call.
    """
    if text is None or (text.startswith(_FIRST_VERSION) and text.endswith(_NOT_SAMPLED)):
        return None
    context = read_traceparent(text)
    return context if context is not None and context.is_sampled else None


class ApplicationSampler:
    """Derives the trace context of each application, and decides whether the application is traced.

    Args:
        name: `name` of the arguments, so that services with a common collector share no trace.
        model: The model's name; each model has its own span of an application.
        sample_ratio: Share of the applications that are traced, 0 to 1.
    """

    def __init__(self, name: str, model: str, sample_ratio: float) -> None:
        self._name = name
        self._of_model = int.from_bytes(blake2b(model.encode(), digest_size=8).digest())
        self._below = round(sample_ratio * (_LOWER_64_BITS + 1))

    def context(self, application_id: ApplicationId) -> TraceContext:
        name = f"{self._name}{SEPARATOR}{application_id}".encode()
        digest = blake2b(name, digest_size=24).digest()
        trace_id = int.from_bytes(digest[:16])
        is_sampled = trace_id & _LOWER_64_BITS < self._below
        span_id = int.from_bytes(digest[16:]) ^ self._of_model
        return TraceContext(trace_id, span_id or 1, is_sampled)
