"""The description of the HTTP surface in OpenAPI 3.1: FastAPI's part, and the rest.

FastAPI describes paths, queries and answers of its own routes. The rest is added here: endpoints
that pass FastAPI by, headers, bodies, errors, and the scope that the door asks for on each path.
"""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from fastapi import Query
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import BaseRoute, Route

from justitia_ray import __version__
from justitia_ray.protocol.endpoints import (
    APPLICATION_HEADER,
    CLASS_HEADER,
    DEADLINE_HEADER,
    FINAL_HEADER,
    INFERENCE_PATHS,
    KEEPALIVE_HEADER,
    LEASED_HEADER,
    POSITION_HEADER,
    RAN_HEADER,
    REPLICA_HEADER,
    RETRY_COUNT_HEADER,
    TENANT_HEADER,
    WAITED_HEADER,
)
from justitia_ray.protocol.errors import RATE_LIMIT_EXCEEDED, STATUS, has_anthropic_form
from justitia_ray.protocol.generation_bodies import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    MESSAGES,
    RESPONSES,
)
from justitia_ray.protocol.pooling_bodies import (
    CLASSIFY,
    COHERE_EMBED,
    EMBEDDINGS,
    POOLING,
    RANKINGS,
    SCORES,
)
from justitia_ray.protocol.refusals import DropReason
from justitia_ray.protocol.stream_forms import Keepalive
from justitia_ray.serve.ingress.door import is_public, scope_of
from justitia_ray.serve.ingress.request_context import IDEMPOTENCY_HEADER

Json: TypeAlias = dict[str, Any]

DESCRIPTION_PATH = "/openapi.json"

_ABOUT = """\
Fair, fast serving of LLM applications: the inference APIs of OpenAI, Anthropic and vLLM, and
applications of many inferences.

Where the service is configured with `access`, every operation that has a scope asks for a
credential: an API key or a JSON Web Token, as `Authorization: Bearer …` or as `x-api-key`. Without
`access` none is asked for."""


ModelQuery: TypeAlias = Annotated[
    str | None, Query(description="The model that is meant, where several are served; else all.")
]


# --- headers


def _header(name: str, description: str) -> Json:
    return {
        "name": name.title(),
        "in": "header",
        "description": description,
        "schema": {"type": "string"},
    }


TENANT = _header(
    TENANT_HEADER,
    "Tenant that the call is for, e.g. `acme/search`; it may only narrow the credential's own.",
)
_HEADERS = (
    _header(
        APPLICATION_HEADER,
        "Application of the inference; an unknown id opens one. Without it other headers may say"
        " it, or else the inference is an application of its own.",
    ),
    _header(CLASS_HEADER, "Class of an application that this request opens."),
    _header(
        DEADLINE_HEADER,
        "Seconds that the inference may wait in the queue for its first lease, above 0; 504 if it"
        " cannot, or did.",
    ),
    _header(KEEPALIVE_HEADER, "What the call's stream gets when it is silent.")
    | {"schema": {"enum": [kind.value for kind in Keepalive]}},
    _header(FINAL_HEADER, "`true`: the application takes no more inferences than this one."),
    TENANT,
    _header(
        IDEMPOTENCY_HEADER,
        "A retry with the same key and body joins the attempt that runs, or reads its answer"
        " again.",
    ),
    _header(
        RETRY_COUNT_HEADER,
        "How often the call was sent before. One that was refused, and comes back, goes before"
        " those that come for the first time.",
    ),
)

_ANSWER_HEADERS = {
    name: {"description": description, "schema": {"type": "string"}}
    for name, description in {
        APPLICATION_HEADER: "Application of the inference, by whatever it was recognised.",
        REPLICA_HEADER: "Replica that made the answer.",
        WAITED_HEADER: "Seconds that the inference waited in the queue.",
        POSITION_HEADER: "Applications that were before its own when it came; none if not known.",
        RAN_HEADER: "Of whole answers: seconds that the replica had the inference.",
        LEASED_HEADER: "Of whole answers: seconds of the inference's lease.",
    }.items()
}


# --- bodies of this service's own paths


def operation(
    *headers: Json, body: type[BaseModel] | None = None, body_required: bool = True
) -> Json:
    """Return what FastAPI does not know of one of its routes, as its `openapi_extra`.

    Args:
        *headers: Parameters that the route reads from headers.
        body: Model of a body that the route reads without FastAPI.
        body_required: Whether the body may not be empty.
    """
    extra: Json = {"parameters": [*headers]} if headers else {}
    if body is not None:
        content = {"application/json": {"schema": body.model_json_schema()}}
        extra["requestBody"] = {"required": body_required, "content": content}
    return extra


# --- bodies of inferences: the fields that this service reads, or whose absence it refuses


def _positive(most: int | None = None) -> Json:
    bounds = {"minimum": 1} if most is None else {"minimum": 1, "maximum": most}
    return {"type": ["integer", "null"], **bounds}


def _one_or_more(*kinds: Json) -> Json:
    items = kinds[0] if len(kinds) == 1 else {"anyOf": [*kinds]}
    return {"type": "array", "minItems": 1, "items": items}


def _any_of(*names: str) -> Json:
    return {"anyOf": [{"required": [name]} for name in names]}


_TEXT: Json = {"type": "string"}
_OBJECT: Json = {"type": "object"}
_OBJECTS: Json = {"type": "array", "items": _OBJECT}
_TOOLS: Json = {"tools": {"type": ["array", "null"], "items": _OBJECT}}
_STREAM: Json = {"stream": {"type": ["boolean", "null"]}}
_MODEL: Json = {
    "model": {
        "type": ["string", "null"],
        "description": "Name of a served model or adapter; required where several are served.",
    }
}
_CONTENT: Json = {"anyOf": [_TEXT, _OBJECTS, {"type": "null"}]}
_MESSAGES = _one_or_more(
    {"type": "object", "properties": {"role": _TEXT, "content": _CONTENT}},
)
_TOKEN_IDS = _one_or_more({"type": "integer"})
_TEXTS_OR_IDS: Json = {"anyOf": [_TEXT, _one_or_more(_TEXT), _TOKEN_IDS, _one_or_more(_TOKEN_IDS)]}
_PART: Json = {"anyOf": [_TEXT, _OBJECT]}
_PARTS: Json = {"anyOf": [{"type": "string", "minLength": 1}, _one_or_more(_PART)]}
_INPUTS: Json = {
    "properties": {
        "input": {"anyOf": [*_TEXTS_OR_IDS["anyOf"], _MESSAGES]},
        "messages": _MESSAGES,
        "truncate_prompt_tokens": {"type": ["integer", "null"]},
    },
    **_any_of("input", "messages"),
}
_BOUNDS: Json = {
    "max_tokens": _positive(),
    "n": _positive(128),
    "min_tokens": {"type": ["integer", "null"]},
    "ignore_eos": {"type": ["boolean", "null"]},
    "stop": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}, {"type": "null"}]},
}
_SCORED: Json = {
    "properties": {
        "queries": _PARTS,
        "documents": _PARTS,
        "items": _PARTS,
        "data_1": _PARTS,
        "data_2": _PARTS,
        "text_1": _PARTS,
        "text_2": _PARTS,
    },
    "anyOf": [
        {"required": ["queries", "documents"]},
        {"required": ["queries", "items"]},
        {"required": ["data_1", "data_2"]},
        {"required": ["text_1", "text_2"]},
    ],
}
_RANKED: Json = {"properties": {"query": _PARTS, "documents": _PARTS}}


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """An endpoint whose answers are the engine's."""

    summary: str
    api: str
    """The API that says the rest of its body and its answers."""
    fields: Json
    """JSON Schema of the fields that are read here, but for `model`."""
    streams: bool = False


_POOLING_API = "vLLM's pooling API"
_ENDPOINTS: dict[str, _Endpoint] = {
    CHAT: _Endpoint(
        "Chat",
        "OpenAI's Chat Completions API, with vLLM's own fields",
        {
            "properties": {
                "messages": _MESSAGES,
                "max_completion_tokens": _positive(),
                **_BOUNDS,
                **_STREAM,
                **_TOOLS,
            },
            "required": ["messages"],
        },
        streams=True,
    ),
    COMPLETIONS: _Endpoint(
        "Completion",
        "OpenAI's Completions API, with vLLM's own fields",
        {
            "properties": {"prompt": _TEXTS_OR_IDS, **_BOUNDS, **_STREAM},
            "required": ["prompt"],
        },
        streams=True,
    ),
    RESPONSES: _Endpoint(
        "Response",
        "OpenAI's Responses API, with vLLM's own fields; nothing is kept, so that"
        " `previous_response_id`, `background`, `conversation` and `prompt` are refused",
        {
            "properties": {
                "input": {"anyOf": [_TEXT, _MESSAGES]},
                "instructions": {"type": ["string", "null"]},
                "max_output_tokens": _positive(),
                "ignore_eos": {"type": ["boolean", "null"]},
                **_STREAM,
                **_TOOLS,
            },
            "required": ["input"],
        },
        streams=True,
    ),
    MESSAGES: _Endpoint(
        "Message",
        "Anthropic's Messages API",
        {
            "properties": {
                "messages": _MESSAGES,
                "system": _CONTENT,
                "max_tokens": {"type": "integer", "minimum": 1},
                **_STREAM,
                **_TOOLS,
            },
            "required": ["messages", "max_tokens"],
        },
        streams=True,
    ),
    EMBEDDINGS: _Endpoint("Embeddings", "OpenAI's Embeddings API, with vLLM's own fields", _INPUTS),
    COHERE_EMBED: _Endpoint(
        "Embeddings, in Cohere's form",
        "Cohere's Embed API",
        {
            "properties": {
                "texts": _one_or_more(_TEXT),
                "images": _one_or_more(_TEXT),
                "inputs": _one_or_more(_OBJECT),
            },
            **_any_of("texts", "images", "inputs"),
        },
    ),
    POOLING: _Endpoint("Pooled outputs", _POOLING_API, _INPUTS),
    CLASSIFY: _Endpoint("Classes of inputs", _POOLING_API, _INPUTS),
    **dict.fromkeys(SCORES, _Endpoint("Scores of pairs", _POOLING_API, _SCORED)),
    **dict.fromkeys(
        RANKINGS,
        _Endpoint(
            "Documents in order of relevance",
            "Jina's and Cohere's Rerank API",
            {**_RANKED, "required": ["query", "documents"]},
        ),
    ),
    "/tokenize": _Endpoint("Token ids of a text", "vLLM's API", {}),
    "/detokenize": _Endpoint("Text of token ids", "vLLM's API", {}),
    COUNT_TOKENS: _Endpoint("Count of a message's tokens", "Anthropic's Messages API", {}),
}
_STREAMED: Json = {
    "text/event-stream": {
        # No type: readers of the document differ in whether it is of the text or of an event.
        "schema": {"description": "With `stream`: events, and comments while it waits."}
    }
}
_BYTES: Json = {
    "application/octet-stream": {
        "schema": {"type": "string", "description": "With `encoding_format: bytes`."}
    }
}


def _engine_route(path: str, endpoint: _Endpoint) -> APIRoute:
    """Return the description of an endpoint that passes FastAPI by."""
    is_scheduled = path in INFERENCE_PATHS
    content: Json = {"application/json": {"schema": _OBJECT}}
    if endpoint.streams:
        content |= _STREAMED
    elif is_scheduled:
        content |= _BYTES
    turn = "Waits for its turn in the queue." if is_scheduled else "Takes no turn in the queue."
    return _described_route(
        path,
        "POST",
        endpoint.summary,
        f"{turn} Body and answer are those of {endpoint.api}.",
        {
            200: {"content": content, "headers": _ANSWER_HEADERS if is_scheduled else {}},
            "default": {"description": "An error of the model's engine, with its own status."},
        },
        operation(*_HEADERS if is_scheduled else ())
        | {"requestBody": {"required": True, "content": _inference_body(endpoint)}},
    )


def _inference_body(endpoint: _Endpoint) -> Json:
    schema = {
        "type": "object",
        "description": f"The fields that this service reads; {endpoint.api} has the rest.",
        **endpoint.fields,
        "properties": _MODEL | endpoint.fields.get("properties", {}),
        "additionalProperties": True,
    }
    return {"application/json": {"schema": schema}}


def _described_route(
    path: str,
    method: str,
    summary: str,
    description: str,
    responses: dict[int | str, Json],
    extra: Json,
) -> APIRoute:
    async def never_called() -> None:
        """Stand for an endpoint of another kind."""

    return APIRoute(
        path,
        never_called,
        methods=[method],
        operation_id=path.strip("/").replace("/", "_"),
        summary=summary,
        description=description,
        responses=responses,
        openapi_extra=extra,
    )


# --- errors


_MEANINGS = {
    # status: (name, description)
    400: ("Malformed", "The request can never succeed as it stands; `param` names the field."),
    401: ("Unauthenticated", "The credential is missing, unknown, expired or malformed."),
    403: ("Forbidden", "The credential does not give the right; the message names it."),
    404: ("NotFound", "What the request names is not there, or belongs to another tenant."),
    409: ("Conflict", "The application takes no more inferences."),
    413: ("TooLarge", "The body is longer than `ingress.max_body_bytes`."),
    415: ("Encoded", "`content-encoding` names a coding that is not decoded here."),
    429: ("TooMany", "Too much is waiting, open or failing; try again later."),
    502: ("EngineFailed", "Engines failed the request over and over."),
    504: ("TooLate", "The call cannot make its deadline, has missed it, or takes too long."),
    503: ("Unavailable", "The service cannot take the request now; try again later."),
}
_FORMS: dict[str, Json] = {
    "OpenAIError": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": _TEXT,
                    "type": _TEXT,
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "integer", "null"]},
                },
            }
        },
    },
    "AnthropicError": {
        "type": "object",
        "required": ["type", "error"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": _TEXT, "message": _TEXT},
            },
        },
    },
}
_RETRY_AFTER: Json = {
    "Retry-After": {
        "description": "Seconds until another try makes sense; none where that is not known.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "Retry-After-Ms": {
        "description": "The same in milliseconds, where a retry within the call makes sense.",
        "schema": {"type": "integer", "minimum": 100, "maximum": 120_000},
    },
    "X-Should-Retry": {
        "description": "`false`: a retry within the call makes no sense.",
        "schema": {"const": "false"},
    },
    "X-Justitia-Dropped-Reason": {
        "description": "Why the call was dropped, once its admission had begun.",
        "schema": {"enum": [reason.value for reason in DropReason]},
    },
}
_ERROR_HEADERS: dict[int, Json] = {
    409: {name: _RETRY_AFTER[name] for name in ("X-Should-Retry", "X-Justitia-Dropped-Reason")},
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
    504: _RETRY_AFTER,
    401: {
        "WWW-Authenticate": {
            "description": "`Bearer`",
            "required": True,
            "schema": {"const": "Bearer"},
        }
    },
}


def _error_responses() -> Iterator[tuple[str, Json]]:
    """Yield each error in each form, by its name in the document."""
    for status, (name, description) in _MEANINGS.items():
        codes = sorted({code for known, _, code in STATUS.values() if known == status and code})
        if status == 429:
            codes = sorted([*codes, RATE_LIMIT_EXCEEDED])
        told = f"{description} Codes: {', '.join(codes)}." if codes else description
        for form in _FORMS:
            schema = {"$ref": f"#/components/schemas/{form}"}
            response = {"description": told, "content": {"application/json": {"schema": schema}}}
            if status in _ERROR_HEADERS:
                response["headers"] = _ERROR_HEADERS[status]
            yield _response_name(name, form), response


def _response_name(name: str, form: str) -> str:
    return f"{form.removesuffix('Error')}{name}"


def _statuses(path: str, described: Json) -> Iterator[int]:
    """Yield the statuses of this service's own errors of an operation."""
    parameters = described.get("parameters", ())
    from_engine = path in _ENDPOINTS
    if not is_public(path):
        yield from (400, 401, 403, 429, 503)
    if from_engine or any(p["in"] == "path" or p["name"] == "model" for p in parameters):
        yield 404
    if "requestBody" in described:
        yield from (413, 415, 504)
    if path in INFERENCE_PATHS or path == "/v1/applications":
        yield 409
    if from_engine:
        yield 502


# --- the document


def describe(routes: Iterable[BaseRoute]) -> Json:
    """Return the OpenAPI document of the HTTP surface.

    Args:
        routes: The application's routes. Those that are not FastAPI's are described here, or left
            out.
    """
    known = [found for route in routes if (found := _as_described(route)) is not None]
    document = get_openapi(
        title="justitia_ray", version=__version__, description=_ABOUT, routes=known
    )
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):  # of FastAPI's own readers of bodies
        schemas.pop(unused, None)
    schemas |= deepcopy(_FORMS)
    components["responses"] = dict(_error_responses())
    components["securitySchemes"] = {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "description": "An API key, or a JSON Web Token of a trusted issuer.",
        },
        "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    for path, operations in document["paths"].items():
        for described in operations.values():
            _complete(path, described)
    return document


def _as_described(route: BaseRoute) -> APIRoute | None:
    if isinstance(route, APIRoute):
        return route
    path = route.path if isinstance(route, Route) else ""
    if path == DESCRIPTION_PATH:
        responses: dict[int | str, Json] = {
            200: {"content": {"application/json": {"schema": _OBJECT}}}
        }
        return _described_route(path, "GET", "This description", "In OpenAPI 3.1.", responses, {})
    return _engine_route(path, _ENDPOINTS[path]) if path in _ENDPOINTS else None


def _complete(path: str, described: Json) -> None:
    """Add to an operation the scope that the door asks for, and the errors of this service."""
    scope, responses = scope_of(path), described["responses"]
    responses.pop("422", None)  # no route lets FastAPI refuse a request
    if not is_public(path):
        described["security"] = [{"bearer": []}, {"apiKey": []}]
    if scope is not None:
        described["x-scope"] = scope.value
        about = described.get("description", "")
        described["description"] = f"{about}\n\nScope: `{scope.value}`.".strip()
    form = "AnthropicError" if has_anthropic_form(path) else "OpenAIError"
    for status in _statuses(path, described):
        name = _response_name(_MEANINGS[status][0], form)
        responses.setdefault(str(status), {"$ref": f"#/components/responses/{name}"})
