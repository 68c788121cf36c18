"""The description of the HTTP surface: valid, complete, and as the door has it."""

from collections.abc import Iterable
from typing import Any

import httpx
import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from justitia_ray.access.gate import Gate
from justitia_ray.access.identity import Identity, Scope
from justitia_ray.protocol.endpoints import INFERENCE_PATHS, UNSCHEDULED_PATHS
from justitia_ray.protocol.errors import has_anthropic_form
from justitia_ray.serve.ingress.door import DEFAULT_TENANT, Door, is_public, scope_of
from justitia_ray.serve.ingress.http_app import HttpApp, build_http_app
from justitia_ray.serve.ingress.models import ServedModels
from justitia_ray.serve.ingress.submission import ApplicationSpecCache
from tests.unit.serve.ingress.http_client import FINDER, StandInGateway, client_of, model_of


@pytest.fixture
def app() -> HttpApp:
    """Return the HTTP application."""
    models = ServedModels([model_of(StandInGateway())])
    return build_http_app(
        models, ApplicationSpecCache(600.0, 100), Door(None, DEFAULT_TENANT), FINDER
    )


def operations(document: dict[str, Any]) -> set[tuple[str, str]]:
    """Return (method, path) of each operation that a document describes."""
    return {(m.upper(), path) for path, of_path in document["paths"].items() for m in of_path}


def registered(routes: list[BaseRoute]) -> set[tuple[str, str]]:
    """Return (method, path) of each route of an application."""
    return {
        (method, route.path_format)
        for route in routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }


def undescribed(app: HttpApp) -> set[tuple[str, str]]:
    """Return the operations that are there and not described, or described and not there."""
    return registered(app.routes) ^ operations(app.openapi())


def without_scope(app: HttpApp) -> set[str]:
    """Return the paths that the door's table lacks."""
    paths = {path for _, path in registered(app.routes)}
    return {path for path in paths if scope_of(path) is None and not is_public(path)}


def test_document_is_valid_openapi(app: HttpApp) -> None:
    """Generators of clients refuse one that is not."""
    document = app.openapi()

    assert document["openapi"].startswith("3.1")
    assert [] == list(OpenAPIV31SpecValidator(document).iter_errors())


def test_every_route_is_described_and_in_the_table_of_the_door(app: HttpApp) -> None:
    """A route without a scope would be open to every credential."""
    assert all(isinstance(route, Route) for route in app.routes)
    assert set() == undescribed(app)
    assert set() == without_scope(app)


def test_route_that_is_added_without_either_is_found(app: HttpApp) -> None:
    """The two checks above can fail: on a plain route, and on one of FastAPI's."""

    async def answer() -> None:
        """Answer nothing."""

    app.add_api_route("/v1/made-up", answer)
    app.add_route("/v2/made-up", lambda request: Response(), methods=["POST"])

    assert {("POST", "/v2/made-up")} == undescribed(app)
    assert {"/v1/made-up", "/v2/made-up"} == without_scope(app)


def test_scope_of_an_operation_is_that_of_the_door(app: HttpApp) -> None:
    """What a reader is told is what is asked of callers."""
    for path, of_path in app.openapi()["paths"].items():
        scope = scope_of(path)
        for described in of_path.values():
            assert (scope and scope.value) == described.get("x-scope")
            assert is_public(path) == ("security" not in described)
            assert scope is None or f"Scope: `{scope.value}`." in described["description"]


def test_public_operations_ask_for_no_credential(app: HttpApp) -> None:
    """Probes and this description; all else is behind the door."""
    public = {path for path in app.openapi()["paths"] if is_public(path)}

    assert {"/healthz", "/readyz", "/openapi.json"} == public


async def test_description_is_served(app: HttpApp) -> None:
    """Behind a prefix it names the prefix as the server."""
    transport = httpx.ASGITransport(app, root_path="/llm")
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
        answer = await http.get("/llm/openapi.json")

    assert app.openapi() | {"servers": [{"url": "/llm"}]} == answer.json()


@pytest.mark.parametrize("path", INFERENCE_PATHS)
async def test_body_without_its_input_is_refused_as_the_description_says(
    app: HttpApp, path: str
) -> None:
    """What the service asks for, and what it says that it asks for, are written in two places."""
    described = app.openapi()["paths"][path]["post"]["requestBody"]
    schema = described["content"]["application/json"]["schema"]
    names = ("input", "prompt", "messages", "texts", "queries", "documents", "query")
    # The Responses API has a field `prompt` that is refused, and none of the others' inputs.
    inputs: dict[str, Any] = dict.fromkeys(names, "a") | {"max_tokens": 5}
    inputs |= {"messages": [{"role": "user", "content": "a"}], "texts": ["a"]}
    if path == "/v1/responses":
        del inputs["prompt"]
    validator = jsonschema.Draft202012Validator(schema)
    async with client_of(model_of(StandInGateway())) as http:
        complete = await http.post(path, json=inputs)
        empty = await http.post(path, json={})

    assert (200, True) == (complete.status_code, validator.is_valid(inputs))
    assert (400, False) == (empty.status_code, validator.is_valid({}))


def test_errors_have_the_form_of_the_path_and_their_headers(app: HttpApp) -> None:
    """A client reads the form of its API; when to try again, and how to say who calls."""
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
    """Takes everybody for a caller that may ask models, and no more."""

    def __init__(self) -> None:
        """Need nothing to tell callers apart."""

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
async def test_door_sees_the_path_that_is_routed(prefix: str, path: str, status: int) -> None:
    """With a prefix cut off otherwise than the router does, the scope would not be asked for."""
    models = ServedModels([model_of(StandInGateway())])
    app = build_http_app(models, ApplicationSpecCache(600.0, 100), Door(InferOnly(), None), FINDER)
    transport = httpx.ASGITransport(app, root_path=prefix)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
        answer = await http.get(path)

    assert status == answer.status_code


async def test_method_that_is_not_allowed_is_told_which_is(app: HttpApp) -> None:
    """HTTP asks for the header, RFC 9110, 15.5.6."""
    async with client_of(model_of(StandInGateway())) as http:
        answer = await http.put("/v1/status")

    assert (405, "GET") == (answer.status_code, answer.headers["allow"])
