"""Requests generated from the OpenAPI description, and requests with arbitrary headers.

None may cause a server failure or pass without its scope, and the description allows every answer.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from justitia_ray.access.gate import Gate
from justitia_ray.access.identity import Scope
from justitia_ray.access.keys import KeyTable, create_key
from justitia_ray.serve.asgi import Message
from justitia_ray.serve.ingress import http_console
from justitia_ray.serve.ingress.door import TRUSTED, Door, is_public, scope_of
from justitia_ray.serve.ingress.http_app import HttpApp, build_http_app
from justitia_ray.serve.ingress.models import ServedModels
from justitia_ray.serve.ingress.request_context import IDENTIFYING
from justitia_ray.serve.ingress.submission import ApplicationSpecCache
from tests.unit.serve.ingress.answering_model import answering_model
from tests.unit.serve.ingress.http_client import FINDER

_NOW = 1_800_000_000.0
_new_key = partial(create_key, now=_NOW, random_bytes=random.Random(1).randbytes)
_KEYS = {
    "infer": _new_key(tenant="t", scopes=["infer"]),
    "own": _new_key(tenant="t/a", scopes=["own"]),
    "operate": _new_key(tenant=None, scopes=["operate"]),
    "proxy": _new_key(tenant=None, scopes=["proxy", "infer", "own"]),
    "all": _new_key(tenant="t", scopes=[*Scope], max_weight=9.0),
}
_UNKNOWN = _new_key(tenant="t").secret
_MAY = {
    # Scopes of the paths that each identity may call.
    "infer": {"infer"},
    "own": {"own"},
    "operate": {"operate", "own"},
    "proxy": {"infer", "own"},
    "all": {"infer", "own", "operate"},
}
_TABLE = KeyTable(key.record for key in _KEYS.values())

_FUZZ = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=20,
    phases=[Phase.generate],
    suppress_health_check=[*HealthCheck],
)
_CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


async def _send_at_once(delay_s: float) -> None:
    pass


def _build_app() -> HttpApp:
    gate = Gate(
        [lambda: _TABLE],
        None,
        None,
        clock=lambda: 0.0,
        calendar=lambda: _NOW,
        sleep=_send_at_once,
    )
    specs = ApplicationSpecCache(600.0, 100)
    return build_http_app(ServedModels([answering_model(specs)]), specs, Door(gate, None), FINDER)


_APP = _build_app()
_DESCRIBED = schemathesis.openapi.from_dict(_APP.openapi())
_DESCRIBED.config.generation.update(with_security_parameters=False)
_FOUND: Any = _DESCRIBED.get_all_operations()
_OPERATIONS: list[Any] = [found.ok() for found in _FOUND]


@pytest.fixture(autouse=True)
def _end_streams_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_console, "LIFE_S", 0.0)


@pytest.fixture(scope="module")
def event_loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


async def send_case(case: Any, credential: str | None) -> httpx.Response:
    made: Any = requests.Request(**case.as_transport_kwargs(base_url="http://service")).prepare()
    headers = [
        (name.lower().encode(), value if isinstance(value, bytes) else value.encode("latin-1"))
        for name, value in made.headers.items()
    ]
    if credential is not None:
        headers.append((b"authorization", f"Bearer {credential}".encode()))
    transport = httpx.ASGITransport(_APP, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport) as http:
        body = made.body.encode() if isinstance(made.body, str) else made.body
        return await http.request(made.method, made.url, headers=headers, content=body)


def refusal_status(path: str, name: str) -> int | None:
    """Return the status that refuses a caller on a path; None if the caller is admitted."""
    scope = scope_of(path)
    if scope is None or is_public(path):
        return None
    if name not in _MAY:
        return 401
    return None if scope.value in _MAY[name] else 403


def _use_existing_names(case: Any) -> None:
    """Replace the generated names in a call by existing ones."""
    if "name" in case.path_parameters:
        case.path_parameters = {"name": "m"}
    if isinstance(case.body, dict):
        for name in ("model", "tenant", "application_id"):
            case.body.pop(name, None)
        if "application_class" in case.body:
            case.body["application_class"] = "c"


@pytest.mark.slow
@pytest.mark.parametrize("operation", _OPERATIONS, ids=lambda operation: operation.label)
def test_answer_to_a_generated_call_is_in_the_openapi_description(
    operation: Any, event_loop: asyncio.Runner
) -> None:
    """Well-formed and malformed calls are sent with valid, invalid and missing credentials."""
    modes = [GenerationMode.POSITIVE]
    if operation.body or operation.query or operation.headers:
        modes.append(GenerationMode.NEGATIVE)

    @_FUZZ
    @given(case=st.one_of(*(operation.as_strategy(mode) for mode in modes)), tame=st.booleans())
    def check_case(case: Any, tame: bool) -> None:
        if tame:
            _use_existing_names(case)
        secrets = {name: key.secret for name, key in _KEYS.items()}
        for name, secret in (secrets | {"unknown": _UNKNOWN, "none": None}).items():
            answer = event_loop.run(send_case(case, secret))
            refused = refusal_status(operation.path, name)
            assert (refused or answer.status_code) == answer.status_code, answer.text
            assert answer.status_code < 500, answer.text
            case.validate_response(answer, checks=_CHECKS)

    check_case()


# --- arbitrary headers


_CREDENTIALS = (b"authorization", b"x-api-key")
_WHO = (*_CREDENTIALS, *IDENTIFYING)
_KNOWN = [
    b"",
    b"t",
    b"t/a",
    b"a",
    b"t|a",
    b"bearer",
    b"k" * 100_000,
    *(key.secret.encode() for key in _KEYS.values()),
    *(b"Bearer " + key.secret.encode() for key in _KEYS.values()),
    _UNKNOWN.encode(),
    b"Bearer a.b.c",
]
_VALUES = st.one_of(st.sampled_from(_KNOWN), st.binary(max_size=40))
_NAMES = st.one_of(
    st.sampled_from([*_WHO, b"content-length", b"content-type", b"host"]),
    st.binary(max_size=10).map(bytes.lower),
)
_GOOD = (b"authorization", b"Bearer " + _KEYS["all"].secret.encode())
_HEADER_LISTS = st.one_of(
    st.lists(st.tuples(_NAMES, _VALUES), max_size=8),
    # With a valid credential, more of the other headers are read.
    st.lists(st.tuples(_NAMES, _VALUES), max_size=3, unique_by=lambda header: header[0]).map(
        lambda headers: [*headers, _GOOD]
    ),
)
_TARGETS = st.one_of(
    st.sampled_from(
        [(found.method.upper(), found.path.translate({123: "", 125: ""})) for found in _OPERATIONS]
    ),
    st.tuples(
        st.sampled_from(["GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "made-up"]),
        st.one_of(
            st.sampled_from(
                [
                    "",
                    "/v1/models/",
                    "/v1/applications/",
                    "/v1/applications/t|a",
                    "/v1/applications/t|a/close",
                    "/v1/applications//close",
                ]
            ),
            st.text(max_size=20).map(lambda text: f"/{text}"),
        ),
    ),
)
"""Methods and paths of generated calls, nearly all of which exist."""
_QUERIES = st.one_of(
    st.sampled_from(
        [b"", b"model=m", b"model=%ED%A0%80", b"applications=%D9%A3", b"model&model=m"]
    ),
    st.text(max_size=20).map(str.encode),
    st.binary(max_size=20),
)
_BODIES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            {"prompt": "a", "messages": [{"content": "a"}], "input": "a", "max_tokens": 1},
            {"messages": [{"content": "a"}], "input": "a", "stream": True, "max_tokens": 1},
            {"application_class": "c"},
            {"samples": [{}]},
        ]
    ).map(lambda fields: json.dumps(fields).encode()),
)


async def answer_to(scope: Message, body: bytes) -> list[Message]:
    """Return the messages of the answer to a caller that does not disconnect."""
    unread, sent = [{"type": "http.request", "body": body, "more_body": False}], list[Message]()

    async def receive_body() -> Message:
        if unread:
            return unread.pop()
        await asyncio.Event().wait()
        raise AssertionError("the caller stays")

    async def record_message(message: Message) -> None:
        sent.append(message)

    await _APP(scope, receive_body, record_message)
    return sent


@pytest.mark.slow
@settings(_FUZZ, max_examples=1_000)
@given(
    target=_TARGETS,
    query=_QUERIES,
    headers=_HEADER_LISTS,
    body=_BODIES,
    trusted=st.booleans(),
)
def test_arbitrary_headers_cause_no_failure_and_admit_no_caller(
    event_loop: asyncio.Runner,
    target: tuple[str, str],
    query: bytes,
    headers: list[tuple[bytes, bytes]],
    body: bytes,
    trusted: bool,
) -> None:
    """The headers include duplicates, invalid text, huge values and two credentials."""
    method, path = target
    scope: Message = {"type": "http", "method": method, "path": path, "query_string": query}
    scope.update(
        {"headers": headers, "scheme": "http", "server": ("service", 80), TRUSTED: trusted}
    )
    begin, *_ = event_loop.run(answer_to(scope, body))
    times = Counter(name for name, _ in headers)

    assert begin["status"] < 500
    is_sign_of_life = method == "HEAD" and path in ("", "/")
    if not is_public(path) and not is_sign_of_life:
        if any(times[name] > 1 for name in _WHO):
            assert begin["status"] in (400, 401)
        if not trusted and not any(times[name] for name in _CREDENTIALS):
            assert begin["status"] in (400, 401)


@pytest.mark.parametrize("name", _WHO)
def test_two_copies_of_an_identifying_header_are_refused(
    event_loop: asyncio.Runner, name: bytes
) -> None:
    """Servers differ in which copy they use, so even equal copies are refused."""
    secret = _KEYS["all"].secret.encode()
    values = {b"authorization": b"Bearer " + secret, b"x-api-key": secret}
    headers = [(b"authorization", values[b"authorization"])] * (name not in _CREDENTIALS)
    header = (name, values.get(name, b"t"))
    statuses = []
    for copies in (1, 2):
        scope: Message = {"type": "http", "method": "GET", "path": "/v1/models"}
        scope.update({"query_string": b"", "headers": [*headers, *[header] * copies]})
        statuses.append(event_loop.run(answer_to(scope, b""))[0]["status"])

    assert [200, 400] == statuses


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/", "/healthz", "/made-up"])
def test_query_with_invalid_text_is_refused(event_loop: asyncio.Runner, path: str) -> None:
    """The HTTP server passes raw bytes on, at which the web framework would fail."""
    scope: Message = {"type": "http", "method": "PUT", "path": path, "query_string": b"a=\xb1"}
    scope.update({"headers": [_GOOD], "scheme": "http", "server": ("service", 80)})

    assert 400 == event_loop.run(answer_to(scope, b""))[0]["status"]
