"""Table of spans and their attributes; the names occur nowhere else in the code.

`gen_ai.*` are OpenTelemetry's semantic conventions for generative AI, status Development; this file
follows their changes. `justitia.*` are this project's. No attribute contains a prompt or an answer.
"""

from dataclasses import dataclass

from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from justitia_ray.protocol.pooling_bodies import COHERE_EMBED, EMBEDDINGS

_OPERATIONS = {
    CHAT: "chat",
    RESPONSES: "chat",
    MESSAGES: "chat",
    COMPLETIONS: "text_completion",
    EMBEDDINGS: "embeddings",
    COHERE_EMBED: "embeddings",
}
APPLICATION = "invoke_agent"
QUEUE_SPAN = "justitia.queue"
LEASE_SPAN = "justitia.lease"
ENGINE_SPAN = "justitia.engine"


def operation_of(path: str) -> str:
    """Return OpenTelemetry's name for the operation of an API path, or the path's last part."""
    return _OPERATIONS.get(path) or path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Attribute:
    """Attribute of trace spans, as a row of the attribute table."""

    name: str
    spans: tuple[str, ...]
    """Names of the spans that have the attribute."""
    description: str


_CALL = "call"
_APPLICATION = "application"
_ALL = (_APPLICATION, _CALL)

OPERATION = Attribute(
    "gen_ai.operation.name", (*_ALL, ENGINE_SPAN), "`chat`, `text_completion`, `invoke_agent`, …"
)
PROVIDER = Attribute("gen_ai.provider.name", (*_ALL, ENGINE_SPAN), "`justitia_ray`.")
MODEL = Attribute("gen_ai.request.model", (*_ALL, ENGINE_SPAN), "The model's name.")
CONVERSATION = Attribute("gen_ai.conversation.id", _ALL, "The application's id within its tenant.")
AGENT = Attribute("gen_ai.agent.name", _ALL, "The application's class.")
INPUT_TOKENS = Attribute(
    "gen_ai.usage.input_tokens",
    (_APPLICATION, ENGINE_SPAN),
    "Prompt tokens, as the engine counts them.",
)
CACHED_TOKENS = Attribute(
    "gen_ai.usage.cache_read.input_tokens",
    (_APPLICATION, ENGINE_SPAN),
    "Prompt tokens found in the engine's prefix cache.",
)
OUTPUT_TOKENS = Attribute(
    "gen_ai.usage.output_tokens", (_APPLICATION, ENGINE_SPAN), "Generated tokens."
)
STATUS = Attribute("http.response.status_code", (_CALL, ENGINE_SPAN), "The answer's status.")
ERROR = Attribute(
    "error.type",
    (_CALL, QUEUE_SPAN, LEASE_SPAN, ENGINE_SPAN),
    "The error's class, `cancelled`, or the status of an engine's error; absent without error.",
)
TENANT = Attribute("justitia.tenant", _ALL, "The application's tenant.")
TIER = Attribute("justitia.tier", (_CALL,), "The service tier that the call requests.")
OUTCOME = Attribute("justitia.outcome", (_APPLICATION,), "How the application ended.")
INFERENCES = Attribute("justitia.inferences", (_APPLICATION,), "Number of its inferences.")
PREDICTED = Attribute(
    "justitia.predicted_kv_token_time", (_APPLICATION,), "Predicted cost, in token·iterations."
)
SERVED = Attribute("justitia.kv_token_time", (_APPLICATION,), "True cost, in token·iterations.")
LAG = Attribute("justitia.gps_lag_s", (_APPLICATION,), "Seconds behind ideal fair sharing.")
TAG = Attribute(
    "justitia.virtual_finish_time",
    (_APPLICATION, QUEUE_SPAN),
    "Tag F; on a wait only if it lasts longer than 50 ms.",
)
POSITION = Attribute(
    "justitia.position", (QUEUE_SPAN,), "Applications ahead, for waits above 50 ms."
)
REASON = Attribute(
    "justitia.reason",
    (QUEUE_SPAN,),
    "Why it waits, for waits above 50 ms: see [why and when](why-and-when.md#reasons).",
)
CONTEXT_FULL = Attribute(
    "justitia.context_full_s",
    (QUEUE_SPAN,),
    "Seconds for which the replica that holds its context is full, if that is the reason.",
)
MISSING_KV = Attribute(
    "justitia.missing_kv_tokens",
    (QUEUE_SPAN,),
    "KV tokens that must become free before it starts, if contexts are the reason.",
)
WAITED = Attribute(
    "justitia.waited_s", (QUEUE_SPAN,), "Seconds of the wait, by the scheduler's clock."
)
ATTEMPT = Attribute(
    "justitia.attempt",
    (QUEUE_SPAN, LEASE_SPAN),
    "Number of the attempt, from 1; rises after a lost lease.",
)
LEASE = Attribute("justitia.lease_id", (LEASE_SPAN, ENGINE_SPAN), "The lease.")
PRIORITY = Attribute("justitia.priority", (LEASE_SPAN,), "Priority in the engine: lower is first.")
REPLICA = Attribute("justitia.replica", (LEASE_SPAN, ENGINE_SPAN), "The leased replica.")

PROVIDER_NAME = "justitia_ray"
TABLE: tuple[Attribute, ...] = tuple(
    value for value in tuple(globals().values()) if isinstance(value, Attribute)
)
"""All attributes of spans, in the order of this file."""
