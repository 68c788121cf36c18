"""Authorization before a request body is read, and the context of an admitted request."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.routing import Route

from justitia_ray.access.gate import Gate
from justitia_ray.access.identity import Identity, Scope
from justitia_ray.access.keys import KeyTable, create_key, write_records
from justitia_ray.config import AppArgs
from justitia_ray.errors import ConfigError, Forbidden, RequestError, UnknownApplication
from justitia_ray.protocol.endpoints import INFERENCE_PATHS
from justitia_ray.serve.asgi import call_asgi
from justitia_ray.serve.ingress.access_keeper import AccessKeeper
from justitia_ray.serve.ingress.door import (
    ANYBODY,
    DEFAULT_TENANT,
    TRUSTED,
    Door,
    context_of,
    is_public,
    scope_of,
)
from justitia_ray.serve.ingress.http_app import build_http_app
from justitia_ray.serve.ingress.models import ServedModels
from justitia_ray.serve.ingress.request_context import RequestContext, read_context
from justitia_ray.serve.ingress.submission import ApplicationSpecCache
from tests.unit.serve.ingress.http_client import FINDER, StandInGateway, client_of, served_model

KEY = create_key(tenant="acme", scopes=["infer"], now=0.0)
OPEN = Door(None, DEFAULT_TENANT)


def guarded_door(default_tenant: str | None = None) -> Door:
    return Door(Gate([lambda: KeyTable([KEY.record])], None, None), default_tenant)


def asgi_scope(*headers: tuple[str, str], **more: Any) -> dict[str, Any]:
    raw = [(name.encode(), value.encode()) for name, value in headers]
    return {"headers": raw, **more}


async def admitted_context(
    door: Door, path: str, *headers: tuple[str, str], **more: Any
) -> RequestContext:
    scope = asgi_scope(*headers, **more)
    await door.admit(scope, path)
    return context_of(scope)


def test_every_route_is_in_the_authorization_table() -> None:
    """A route without an entry would be open to every credential."""
    app = build_http_app(ServedModels([served_model()]), ApplicationSpecCache(1.0, 1), OPEN, FINDER)
    paths = [route.path for route in app.routes if isinstance(route, Route)]

    assert {*INFERENCE_PATHS, "/v1/status", "/healthz"} <= {*paths}
    assert [] == [path for path in paths if not is_public(path) and scope_of(path) is None]
    assert scope_of("/v1/statuses") is None


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("/v1/chat/completions", Scope.INFER),
        ("/v1/models/org/name", Scope.INFER),
        ("/v1/applications", Scope.OWN),
        ("/v1/applications/a/close", Scope.OWN),
        ("/v1/status", Scope.OPERATE),
        ("/v1/predictor/c/rollback", Scope.OPERATE),
        ("/healthz", None),
        ("/nowhere", None),
    ],
)
def test_every_path_requires_its_documented_scope(path: str, scope: Scope | None) -> None:
    assert scope == scope_of(path)


async def test_caller_may_name_any_tenant_without_access_control() -> None:
    context = await admitted_context(OPEN, "/v1/status", ("x-justitia-tenant", "team"))

    assert ("team", True) == (context.tenant, context.operates)
    assert "default" == (await admitted_context(OPEN, "/v1/status")).tenant


async def test_call_over_a_handle_needs_no_credential() -> None:
    """A caller over a handle must name its tenant unless a default tenant is configured."""
    named = await admitted_context(
        guarded_door(), "/v1/status", ("x-justitia-tenant", "in"), **{TRUSTED: True}
    )
    unnamed = await admitted_context(guarded_door(), "/v1/status", **{TRUSTED: True})

    assert "in" == named.tenant
    with pytest.raises(RequestError, match="tenant is required"):
        assert unnamed.tenant
    assert (
        "d" == (await admitted_context(guarded_door("d"), "/v1/models", **{TRUSTED: True})).tenant
    )


async def test_request_body_alone_may_name_the_tenant() -> None:
    """Over a handle, a caller may open an application for a tenant named in the body."""
    app = build_http_app(
        ServedModels([served_model(StandInGateway())]),
        ApplicationSpecCache(1.0, 1),
        guarded_door(),
        FINDER,
    )
    bodies = [
        b'{"application_class": "c", "tenant": "in"}',
        b'{"application_class": "c"}',
    ]
    answers = [
        [m async for m in call_asgi(app, "/v1/applications", [], body, more={TRUSTED: True})]
        for body in bodies
    ]

    assert [200, 400] == [answer[0]["status"] for answer in answers]
    assert b"tenant is required" in answers[1][1]["body"]


@pytest.mark.parametrize("name", ["x-justitia-tenant", "idempotency-key", "authorization"])
async def test_repeated_identifying_header_is_refused(name: str) -> None:
    """A proxy in front of the service may add a second header with other content."""
    with pytest.raises(RequestError, match=f"the header {name} comes 2 times"):
        await admitted_context(OPEN, "/v1/models", (name, "a"), (name, "a"))


async def test_unauthorised_call_is_refused_before_its_body_is_read() -> None:
    gateway = StandInGateway()
    app = build_http_app(
        ServedModels([served_model(gateway)]), ApplicationSpecCache(1.0, 1), guarded_door(), FINDER
    )
    read: list[str] = []

    async def fail_on_read() -> Any:
        read.append("body")
        raise AssertionError("the body was read")

    statuses = []
    for path, headers in (
        ("/v1/completions", []),
        ("/v1/applications", [(b"x-api-key", KEY.secret.encode())]),
    ):
        sent: list[Any] = []

        async def record_message(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        await app(scope, fail_on_read, record_message)
        statuses.append(sent[0]["status"])

    assert ([401, 403], [], 0) == (statuses, read, gateway.answered)


async def test_header_cannot_mark_an_http_call_as_a_serve_handle_call() -> None:
    """Only the ASGI scope says whether a call came over a Serve handle."""
    app = build_http_app(
        ServedModels([served_model(StandInGateway())]),
        ApplicationSpecCache(1.0, 1),
        guarded_door(),
        FINDER,
    )
    headers = [(TRUSTED.encode(), b"1"), (b"content-length", b"0")]
    stranger = [m async for m in call_asgi(app, "/v1/models", headers, b"", method="GET")]
    trusted = [
        m async for m in call_asgi(app, "/v1/models", headers, b"", method="GET", more={TRUSTED: 1})
    ]

    assert [401, 200] == [found[0]["status"] for found in (stranger, trusted)]


async def test_only_authenticated_callers_learn_that_a_path_is_unknown() -> None:
    """A caller with a credential gets 404, one without gets 401.

    A caller without one gets no hint that the path is unknown.
    """
    async with client_of(served_model(StandInGateway()), door=guarded_door()) as http:
        stranger = await http.get("/v1/nowhere")
        known = await http.get("/v1/nowhere", headers={"x-api-key": KEY.secret})

    assert (401, 404) == (stranger.status_code, known.status_code)


OWNER = Identity("acme", frozenset({Scope.OWN}), "key:1")
OPERATOR = Identity("ops", frozenset({Scope.OPERATE}), "key:2")


@pytest.mark.parametrize(
    ("identity", "header", "named", "key"),
    [
        (OWNER, None, "a/b", "acme|a/b"),
        (OWNER, "acme/x", "a", "acme/x|a"),
        (OWNER, None, "acme/x|a", "acme/x|a"),
        (OWNER, "acme/x", "acme|a", "acme|a"),
        (OPERATOR, None, "a", "ops|a"),
        (OPERATOR, None, "beta|a", "beta|a"),
        (OPERATOR, "beta", "a", "beta|a"),
        (ANYBODY, "t", "a", "t|a"),
    ],
)
def test_path_may_contain_an_applications_id_or_key(
    identity: Identity, header: str | None, named: str, key: str
) -> None:
    """An operator may name any application, an owner those of its own tenant."""
    assert key == RequestContext(identity, header).key_of(named)


@pytest.mark.parametrize(("header", "named"), [("beta", "a"), (None, "beta|a"), (None, "|a")])
def test_application_of_another_tenant_is_not_found(header: str | None, named: str) -> None:
    """The answer is equal to that for an id that does not exist."""
    with pytest.raises((UnknownApplication, RequestError)):
        RequestContext(OWNER, header).key_of(named)


def test_header_and_body_must_name_the_same_tenant() -> None:
    context = read_context(OWNER, [(b"x-justitia-tenant", b"acme/x")])

    assert ["acme/x", "acme/x"] == [context.tenant_or(None), context.tenant_or("acme/x")]
    with pytest.raises(RequestError, match="one tenant is allowed"):
        context.tenant_or("acme/y")
    with pytest.raises(Forbidden):
        RequestContext(OWNER).tenant_or("beta")


def app_args(**access: Any) -> AppArgs:
    return AppArgs.parse({"model": {"name": "m", "path": "none"}, "access": access})


async def test_deployed_ingress_uses_the_access_settings(tmp_path: Path) -> None:
    """The settings name a file of keys and a tenant for callers without a key."""
    file = tmp_path / "keys.yaml"
    file.write_text(write_records([KEY.record]))
    denies = AccessKeeper(app_args(keys_file=str(file)))
    admits = AccessKeeper(app_args(anonymous="guests", anonymous_max_weight=2.0))

    known = await admitted_context(denies.door, "/v1/models", ("x-api-key", KEY.secret))
    guest = await admitted_context(admits.door, "/v1/models")
    assert "acme" == known.tenant
    assert ("guests", 2.0, frozenset({Scope.INFER, Scope.OWN})) == (
        guest.tenant,
        guest.identity.max_weight,
        guest.identity.scopes,
    )
    with pytest.raises(ConfigError, match=r"keys\.yaml"):
        AccessKeeper(app_args(keys_file=str(tmp_path / "sub" / "keys.yaml")))


class Predictor:
    """Fake predictor that rolls back from version 2 to version 1."""

    def __getattr__(self, name: str) -> Any:
        answers = {
            "overview": {"classes": {"c": {"serving": 2, "active": 2, "versions": []}}},
            "roll_back": {"serving": 1, "active": 1, "versions": []},
        }

        async def remote(*arguments: Any) -> Any:
            return answers[name]

        return SimpleNamespace(remote=remote)


async def test_action_of_an_operator_is_logged_as_one_json_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The audit line has the actor, the action, the old and new value, and no key."""
    key = create_key(tenant="ops", user="eve", scopes=["operate"], now=0.0)
    gate = Gate([lambda: KeyTable([key.record])], None, None)
    door = Door(gate, None)
    with caplog.at_level(logging.INFO, "ray.serve"):
        async with client_of(served_model(predictor=Predictor()), door=door) as http:
            http.headers["x-api-key"] = key.secret
            answer = await http.post("/v1/predictor/c/rollback", json={"version": 1})

    assert 200 == answer.status_code
    (line,) = [message for message in caplog.messages if message.startswith("audit.")]
    event, _, fields = line.partition(" ")
    assert "audit.predictor.rollback" == event
    assert {
        "who": {"credential": f"key:{key.record.key_id}", "user": "eve", "tenant": "ops"},
        "model": "m",
        "application_class": "c",
        "before": {"serving": 2, "active": 2},
        "after": {"serving": 1, "active": 1},
    } == json.loads(fields)
    assert key.secret not in caplog.text


class EndingScheduler:
    """Fake scheduler that ends every application as requested."""

    async def cancel_application(self, application_id: str) -> bool:
        return True


async def test_audit_log_names_an_operator_who_ends_a_tenants_application(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An operator's action on an application of its own tenant is not audited."""
    key = create_key(tenant="ops", scopes=["operate"], now=0.0)
    door = Door(Gate([lambda: KeyTable([key.record])], None, None), None)
    with caplog.at_level(logging.INFO, "ray.serve"):
        async with client_of(served_model(scheduler=EndingScheduler()), door=door) as http:
            http.headers["x-api-key"] = key.secret
            for name in ("acme|a", "b"):
                assert 200 == (await http.delete(f"/v1/applications/{name}")).status_code

    (line,) = [message for message in caplog.messages if message.startswith("audit.")]
    assert line.startswith("audit.application.cancel")
    assert "acme|a" == json.loads(line.partition(" ")[2])["application_id"]
