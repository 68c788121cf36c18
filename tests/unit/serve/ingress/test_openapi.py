"""The OpenAPI description: valid, complete, and consistent with the authorization table."""

from collections.abc import Iterable
from typing import Any

import httpx
import jsonschema
import pytest
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import BaseModel
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from justitia_ray.access.gate import Gate
from justitia_ray.access.identity import Identity, Scope
from justitia_ray.protocol import endpoints
from justitia_ray.protocol.endpoints import INFERENCE_PATHS, UNSCHEDULED_PATHS
from justitia_ray.protocol.errors import RATE_LIMIT_EXCEEDED, STATUS, has_anthropic_form
from justitia_ray.protocol.refusals import DropReason
from justitia_ray.protocol.stream_forms import Keepalive
from justitia_ray.serve.ingress.door import DEFAULT_TENANT, Door, is_public, scope_of
from justitia_ray.serve.ingress.http_app import HttpApp, build_http_app
from justitia_ray.serve.ingress.http_applications import ApplicationBody
from justitia_ray.serve.ingress.http_what_if import WhatIfBody
from justitia_ray.serve.ingress.models import ServedModels
from justitia_ray.serve.ingress.predictor_http import HistoryBody, RollbackBody
from justitia_ray.serve.ingress.request_context import IDEMPOTENCY_HEADER
from justitia_ray.serve.ingress.submission import ApplicationSpecCache
from tests.unit.serve.ingress.http_client import FINDER, StandInGateway, client_of, served_model


@pytest.fixture
def app() -> HttpApp:
    models = ServedModels([served_model(StandInGateway())])
    return build_http_app(
        models, ApplicationSpecCache(600.0, 100), Door(None, DEFAULT_TENANT), FINDER
    )


def operations(document: dict[str, Any]) -> set[tuple[str, str]]:
    """Return the (method, path) pairs that an OpenAPI document describes."""
    return {(m.upper(), path) for path, of_path in document["paths"].items() for m in of_path}


def registered_operations(routes: list[BaseRoute]) -> set[tuple[str, str]]:
    """Return the (method, path) pairs of an application's routes."""
    return {
        (method, route.path_format)
        for route in routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }


def route_differences(app: HttpApp) -> set[tuple[str, str]]:
    """Return operations that are routed but not described, or described but not routed."""
    return registered_operations(app.routes) ^ operations(app.openapi())


def paths_without_scope(app: HttpApp) -> set[str]:
    """Return the paths that are missing in the authorization table."""
    paths = {path for _, path in registered_operations(app.routes)}
    return {path for path in paths if scope_of(path) is None and not is_public(path)}


def test_api_description_is_valid_openapi(app: HttpApp) -> None:
    document = app.openapi()

    assert document["openapi"].startswith("3.1")
    assert [] == list(OpenAPIV31SpecValidator(document).iter_errors())


def test_every_route_is_described_and_has_a_scope(app: HttpApp) -> None:
    """A route without a scope would be open to every credential."""
    assert all(isinstance(route, Route) for route in app.routes)
    assert set() == route_differences(app)
    assert set() == paths_without_scope(app)


def test_undescribed_route_without_a_scope_is_detected(app: HttpApp) -> None:

    async def handle_call() -> None:
        pass

    app.add_api_route("/v1/made-up", handle_call)
    app.add_route("/v2/made-up", lambda request: Response(), methods=["POST"])

    assert {("GET", "/v1/made-up"), ("POST", "/v2/made-up")} == route_differences(app)
    assert {"/v1/made-up", "/v2/made-up"} == paths_without_scope(app)


def parameters_of(described: dict[str, Any]) -> set[tuple[str, str, bool]]:
    """Return name, place and requiredness of each parameter of an operation."""
    return {
        (one["name"], one["in"], one.get("required", False))
        for one in described.get("parameters", ())
    }


def test_openapi_describes_exactly_the_parameters_that_routes_read(app: HttpApp) -> None:
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    read = get_openapi(title="read", version="0", routes=routes)["paths"]
    paths = app.openapi()["paths"]
    assert {"/v1/usage", "/v1/applications/{application_id}", "/readyz"} <= set(read)
    for path, of_path in read.items():
        for method, of_route in of_path.items():
            described = parameters_of(paths[path][method])
            told = {one for one in described if one[1] != "header"}
            assert parameters_of(of_route) == told, (path, method)


def test_openapi_describes_exactly_the_headers_of_the_service(app: HttpApp) -> None:
    paths = app.openapi()["paths"]
    read = (
        *(endpoints.APPLICATION_HEADER, endpoints.CLASS_HEADER, endpoints.DEADLINE_HEADER),
        *(endpoints.KEEPALIVE_HEADER, endpoints.FINAL_HEADER, endpoints.TENANT_HEADER),
        *(endpoints.RETRY_COUNT_HEADER, IDEMPOTENCY_HEADER),
    )
    sent = {
        *(endpoints.APPLICATION_HEADER, endpoints.REPLICA_HEADER, endpoints.WAITED_HEADER),
        *(endpoints.POSITION_HEADER, endpoints.RAN_HEADER, endpoints.LEASED_HEADER),
    }
    for path in INFERENCE_PATHS:
        told = paths[path]["post"]
        assert {(name.title(), "header", False) for name in read} == parameters_of(told)
        assert sent == set(told["responses"]["200"]["headers"])
    kinds = [one["schema"].get("enum") for one in paths[INFERENCE_PATHS[0]]["post"]["parameters"]]
    assert [kind.value for kind in Keepalive] in kinds
    for path, of_path in paths.items():
        for method, told in of_path.items():
            own = ("/v1/usage", "/v1/applications", "/v1/console/snapshots")
            is_own = path in own or "{application_id}" in path
            has_tenant = (endpoints.TENANT_HEADER.title(), "header", False) in parameters_of(told)
            assert has_tenant == (is_own or path in INFERENCE_PATHS), (path, method)


@pytest.mark.parametrize(
    ("path", "model", "is_needed"),
    [
        ("/v1/applications", ApplicationBody, True),
        ("/v1/predictor/samples", HistoryBody, True),
        ("/v1/predictor/{application_class}/rollback", RollbackBody, False),
        ("/v1/console/what-if", WhatIfBody, False),
    ],
)
def test_openapi_describes_request_bodies_as_their_models(
    app: HttpApp, path: str, model: type[BaseModel], is_needed: bool
) -> None:
    told = app.openapi()["paths"][path]["post"]["requestBody"]

    schema = model.model_json_schema()
    for field in schema["properties"].values():
        if field.get("default", 0) is None:  # Fields that the description leaves out.
            del field["default"]
    assert schema == told["content"]["application/json"]["schema"]
    assert is_needed == told["required"]


def expected_statuses(path: str, described: dict[str, Any]) -> set[str]:
    """Return the statuses of the service's own errors that an operation may return."""
    found = set() if is_public(path) else {"400", "401", "403", "429", "503"}
    is_engine = path in (*INFERENCE_PATHS, *UNSCHEDULED_PATHS)
    names_model = path == "/v1/console/what-if"  # in its body
    if names_model or is_engine:
        found.add("404")
    if any(n == "model" or place == "path" for n, place, _ in parameters_of(described)):
        found.add("404")
    if "requestBody" in described:
        found |= {"413", "415", "504"}
    if path in INFERENCE_PATHS or path == "/v1/applications":
        found.add("409")
    return found | {"502"} if is_engine else found


def test_openapi_describes_exactly_the_errors_of_an_operation(app: HttpApp) -> None:
    for path, of_path in app.openapi()["paths"].items():
        for method, told in of_path.items():
            own = {status for status, answer in told["responses"].items() if "$ref" in answer}
            assert expected_statuses(path, told) == own, (path, method)


def test_openapi_description_of_each_error_lists_its_codes(app: HttpApp) -> None:
    names = {"400": "Malformed", "401": "Unauthenticated", "403": "Forbidden", "404": "NotFound"}
    names |= {"409": "Conflict", "413": "TooLarge", "415": "Encoded", "429": "TooMany"}
    names |= {"502": "EngineFailed", "503": "Unavailable", "504": "TooLate"}
    codes: dict[str, set[str]] = {status: set() for status in names}
    for number, _, code in STATUS.values():
        if code:
            codes[str(number)].add(code)
    codes["429"].add(RATE_LIMIT_EXCEEDED)
    told = app.openapi()["components"]["responses"]
    assert {f"{form}{name}" for form in ("OpenAI", "Anthropic") for name in names.values()} == {
        *told
    }
    for status, name in names.items():
        for form in ("OpenAI", "Anthropic"):
            said = told[f"{form}{name}"]["description"].partition(" Codes: ")[2].removesuffix(".")
            assert ", ".join(sorted(codes[status])) == said, status
    reasons = told["OpenAITooMany"]["headers"]["X-Justitia-Dropped-Reason"]["schema"]["enum"]
    assert [reason.value for reason in DropReason] == reasons


def test_openapi_names_the_scope_that_an_operation_checks(app: HttpApp) -> None:
    for path, of_path in app.openapi()["paths"].items():
        scope = scope_of(path)
        for described in of_path.values():
            assert (scope and scope.value) == described.get("x-scope")
            assert is_public(path) == ("security" not in described)
            assert scope is None or f"Scope: `{scope.value}`." in described["description"]


def test_openapi_public_operations_require_no_credential(app: HttpApp) -> None:
    """Only the probes and the OpenAPI description itself are public."""
    public = {path for path in app.openapi()["paths"] if is_public(path)}

    files = {"/console", "/console/{name}"}
    assert {"/healthz", "/readyz", "/openapi.json"} | files == public


async def test_openapi_description_is_served(app: HttpApp) -> None:
    """Behind a proxy, the description's server URL has the proxy's prefix."""
    transport = httpx.ASGITransport(app, root_path="/llm")
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
        answer = await http.get("/llm/openapi.json")

    assert app.openapi() | {"servers": [{"url": "/llm"}]} == answer.json()


@pytest.mark.parametrize("path", INFERENCE_PATHS)
async def test_body_without_the_required_input_is_refused(app: HttpApp, path: str) -> None:
    """The required input is written once in the service and once in the description."""
    described = app.openapi()["paths"][path]["post"]["requestBody"]
    schema = described["content"]["application/json"]["schema"]
    names = ("input", "prompt", "messages", "texts", "queries", "documents", "query")
    # The Responses API has a `prompt` field, which is refused, and no other input.
    inputs: dict[str, Any] = dict.fromkeys(names, "a") | {"max_tokens": 5}
    inputs |= {"messages": [{"role": "user", "content": "a"}], "texts": ["a"]}
    if path == "/v1/responses":
        del inputs["prompt"]
    validator = jsonschema.Draft202012Validator(schema)
    async with client_of(served_model(StandInGateway())) as http:
        complete = await http.post(path, json=inputs)
        empty = await http.post(path, json={})

    assert (200, True) == (complete.status_code, validator.is_valid(inputs))
    assert (400, False) == (empty.status_code, validator.is_valid({}))


def test_openapi_errors_have_the_format_and_headers_of_the_path(app: HttpApp) -> None:
    """Errors carry a retry time and, where a key is missing, the authentication header."""
    document = app.openapi()
    for path in (*INFERENCE_PATHS, *UNSCHEDULED_PATHS):
        responses = document["paths"][path]["post"]["responses"]
        form = "Anthropic" if has_anthropic_form(path) else "OpenAI"
        for status in ("400", "401", "403", "404", "413", "415", "429", "502", "503", "504"):
            assert responses[status]["$ref"].startswith(f"#/components/responses/{form}")
    errors = document["components"]["responses"]

    assert "WWW-Authenticate" in errors["OpenAIUnauthenticated"]["headers"]
    assert "Retry-After" in errors["OpenAITooMany"]["headers"]
    assert "Retry-After" in errors["AnthropicUnavailable"]["headers"]
    assert "queue_full" in errors["OpenAITooMany"]["description"]


class InferOnly(Gate):
    """Gate that admits every caller with the scope `infer` only."""

    def __init__(self) -> None:
        pass

    async def identify(self, headers: Iterable[tuple[bytes, bytes]]) -> Identity:
        return Identity("t", frozenset({Scope.INFER}), "test")


@pytest.mark.parametrize(
    ("prefix", "path", "status"),
    [
        ("", "/v1/status", 403),
        ("/llm", "/llm/v1/status", 403),
        ("/llm", "/v1/status", 403),
        ("/", "/v1/status", 403),
        ("/v", "/v1/status", 403),
        ("/llm", "/llm", 404),
    ],
)
async def test_authorization_and_routing_use_the_same_path(
    prefix: str, path: str, status: int
) -> None:
    """If router and check removed different prefixes, a call could skip its check."""
    models = ServedModels([served_model(StandInGateway())])
    app = build_http_app(models, ApplicationSpecCache(600.0, 100), Door(InferOnly(), None), FINDER)
    transport = httpx.ASGITransport(app, root_path=prefix)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
        answer = await http.get(path)

    assert status == answer.status_code


async def test_405_answer_lists_the_allowed_methods(app: HttpApp) -> None:
    async with client_of(served_model(StandInGateway())) as http:
        answer = await http.put("/v1/status")

    assert (405, "GET") == (answer.status_code, answer.headers["allow"])
