"""Access control in service: all kinds of credentials, key changes, shares of tenants."""

import asyncio
import runpy
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from justitia_ray.client import JustitiaClient
from justitia_ray.client.transport import API_KEY_VARIABLE, HandleTransport, HttpTransport
from justitia_ray.errors import ResponseError
from justitia_ray.protocol.generation_bodies import MESSAGES
from tests.eventually import eventually
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.key_ring import KeyRing
from tests.harness.service import MODEL, Service, Serving
from tests.integration.access.guarded import GuardedService, http_with_credential
from tests.integration.access.shares import AHEAD, FEW, MANY, SEATS, race_two_tenants

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.asyncio(loop_scope="session")]

EXAMPLE = Path(__file__).parents[3] / "deployments/examples/openai_client/map_reduce_summary.py"
_ANSWER = {"prompt": "a b c", "max_tokens": 2}

Json = dict[str, Any]


async def error_of_request(
    service: Service, secret: str | None, **headers: str
) -> tuple[int, Json]:
    async with http_with_credential(service, secret, **headers) as http:
        answer = await http.post(COMPLETIONS, json=_ANSWER)
    return answer.status_code, answer.json()


async def served_tenant(service: Service, secret: str, **headers: str) -> str:
    """Return the tenant to which a credential's applications belong."""
    async with http_with_credential(service, secret, **headers) as http:
        opened = (await http.post("/v1/applications", json={"application_class": "c"})).json()
        path = f"/v1/applications/{opened['application_id']}"
        tenant: str = (await http.get(path)).json()["tenant"]
        assert 200 == (await http.delete(path)).status_code
    return tenant


async def test_tenant_of_a_call_comes_from_its_credential(guarded: GuardedService) -> None:
    """A credential's tenant may name its sub-tenants in a header; a gateway may name any tenant."""
    service, secrets = guarded.service, guarded.keys.secrets
    token = guarded.issuer.token(scope="justitia.own justitia.infer", org={"team": "search"})

    assert "acme" == await served_tenant(service, secrets["acme"])
    assert "acme/x/y" == await served_tenant(service, secrets["acme"], x_justitia_tenant="acme/x/y")
    assert "any/one" == await served_tenant(
        service, secrets["gateway"], x_justitia_tenant="any/one"
    )
    assert "acme/search" == await served_tenant(service, token)


async def test_application_of_a_subtenant_is_visible_to_its_parent(
    guarded: GuardedService,
) -> None:
    """Keys of the parent tenant may see the application; keys of its other children may not."""
    service, secrets = guarded.service, guarded.keys.secrets
    opening = {"application_class": "c", "application_id": "a", "tenant": "acme/x"}
    async with http_with_credential(service, secrets["acme"], x_justitia_tenant="acme/x") as http:
        await http.post("/v1/applications", json=opening)
        async with http_with_credential(service, secrets["operator"]) as operator:
            status = (await operator.get("/v1/status?applications=10")).json()
        async with http_with_credential(service, secrets["acme"]) as above:
            listed = (await above.get("/v1/applications")).json()["models"]
            by_key = await above.get("/v1/applications/acme%2Fx%7Ca")
        async with http_with_credential(
            service, secrets["acme"], x_justitia_tenant="acme/y"
        ) as beside:
            unseen = await beside.get("/v1/applications/a")
            deep = await beside.get("/v1/applications", headers={"X-Justitia-Tenant": _TOO_DEEP})
        await http.delete("/v1/applications/a")
    seen = {view["application_id"]: view["tenant"] for view in status["first_applications"]}

    assert {"acme/x|a": "acme/x"} == seen
    assert [["acme/x|a"]] == [
        [view["application_id"] for view in one["applications"]] for one in listed.values()
    ]
    assert [200, 404, 400] == [by_key.status_code, unseen.status_code, deep.status_code]


_TOO_DEEP = "acme/2/3/4/5/6/7/8/9"


@pytest.mark.parametrize(
    ("name", "headers", "status", "code"),
    [
        (None, {}, 401, "invalid_api_key"),
        ("unknown", {}, 401, "invalid_api_key"),
        ("acme", {"x_justitia_tenant": "beta"}, 403, "forbidden_tenant"),
        ("acme", {"x_justitia_tenant": "acmelike"}, 403, "forbidden_tenant"),
        ("acme", {"x_justitia_tenant": "acme/../beta/"}, 400, None),
        ("looks", {}, 403, "missing_scope"),
        ("operator", {}, 403, "missing_scope"),
        ("gateway", {}, 400, None),
    ],
)
async def test_refused_call_is_answered_with_status_and_error_code(
    guarded: GuardedService,
    name: str | None,
    headers: dict[str, str],
    status: int,
    code: str | None,
) -> None:
    secret = None if name is None else guarded.keys.secrets.get(name, "jk-" + "0" * 43)
    found, body = await error_of_request(guarded.service, secret, **headers)

    assert (status, code) == (found, body["error"]["code"])
    assert secret is None or secret not in str(body)


async def test_callers_of_anthropics_api_get_anthropics_errors(guarded: GuardedService) -> None:
    """Anthropic's clients send the key in the header `x-api-key`, and read their own error form."""
    async with http_with_credential(guarded.service, None) as http:
        body = {"model": "fake-7b", "messages": [], "max_tokens": 1}
        keys = [{}, {"x-api-key": "nonsense"}, {"x-api-key": guarded.keys.secrets["looks"]}]
        answers = [await http.post(MESSAGES, json=body, headers=key) for key in keys]

    assert [401, 401, 403] == [answer.status_code for answer in answers]
    assert ["authentication_error", "authentication_error", "permission_error"] == [
        answer.json()["error"]["type"] for answer in answers
    ]
    assert "Bearer" == answers[0].headers["www-authenticate"]


async def test_official_clients_send_a_key_and_report_a_refused_key(
    guarded: GuardedService,
) -> None:
    """OpenAI's client sends the key as a bearer token, Anthropic's in a header of its own.

    The fake engine answers only OpenAI's chats, so Anthropic's right key lists the models.
    """
    url, right, wrong = guarded.service.url, guarded.keys.secrets["acme"], "jk-" + "0" * 43
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=right) as client,
        anthropic.AsyncAnthropic(base_url=url, api_key=right) as other,
    ):
        answer = await client.chat.completions.create(**asked)
        listed: list[Any] = [
            await client.models.retrieve(MODEL),
            await other.models.retrieve(MODEL),
        ]
        with pytest.raises(openai.AuthenticationError) as of_openai:
            await client.with_options(api_key=wrong).chat.completions.create(**asked)
        with pytest.raises(anthropic.AuthenticationError) as of_anthropic:
            await other.with_options(api_key=wrong).messages.create(**asked)

    assert answer.choices[0].message.content
    assert [MODEL, MODEL] == [model.id for model in listed]
    assert "invalid_api_key" == of_openai.value.code
    assert "authentication_error" == of_anthropic.value.body["error"]["type"]  # type: ignore[index]


async def test_example_reads_its_api_key_from_the_environment(
    guarded: GuardedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    example = runpy.run_path(str(EXAMPLE))["main"]
    with pytest.raises(openai.AuthenticationError):
        await example(f"{guarded.service.url}/v1", MODEL, 4)
    monkeypatch.setenv(API_KEY_VARIABLE, guarded.keys.secrets["acme"])

    assert await example(f"{guarded.service.url}/v1", MODEL, 4)
    await guarded.service.until_idle()


async def test_key_without_the_operator_scope_is_refused_on_operator_paths(
    guarded: GuardedService,
) -> None:
    paths = ("/v1/status", "/v1/examination", "/v1/predictor")
    async with http_with_credential(guarded.service, guarded.keys.secrets["acme"]) as http:
        assert [403] * 3 == [(await http.get(path)).status_code for path in paths]
        opening = {"application_class": "c", "application_id": "stuck"}
        assert 200 == (await http.post("/v1/applications", json=opening)).status_code
    async with http_with_credential(guarded.service, guarded.keys.secrets["operator"]) as http:
        assert [200] * 3 == [(await http.get(path)).status_code for path in paths]
        status = (await http.get("/v1/status?applications=10")).json()
        assert "acme|stuck" in [one["application_id"] for one in status["first_applications"]]
        assert 200 == (await http.delete("/v1/applications/acme|stuck")).status_code
        assert 404 == (await http.delete("/v1/applications/acme|stuck")).status_code


async def test_python_client_of_this_project_sends_a_key(guarded: GuardedService) -> None:
    http = HttpTransport(guarded.service.url, api_key=guarded.keys.secrets["acme"])
    async with (
        JustitiaClient(http, tenant="acme/team") as client,
        client.application("c", input="x") as app,
    ):
        answer = await app.complete("a b", max_tokens=2)
        state = await app.status()

    assert answer.text
    assert ("acme/team", 1) == (state["tenant"], state["ended"])


async def test_call_over_a_serve_handle_names_its_tenant_without_a_key(
    guarded: GuardedService,
) -> None:
    """Handle calls come from inside the cluster, so they need no key, but must name a tenant."""
    transport = HandleTransport(guarded.service.handle())
    async with (
        JustitiaClient(transport, tenant="inside") as client,
        client.application("c", input="x", weight=9.0) as app,
    ):
        state = await app.status()
    assert ("inside", 9.0) == (state["tenant"], state["weight"])
    with pytest.raises(ResponseError, match="tenant is required"):
        async with JustitiaClient(transport).application("c", input="x"):
            pass


async def test_changed_key_file_takes_effect_soon(guarded: GuardedService) -> None:
    """A key file with a mistake changes nothing."""
    keys = guarded.keys
    keys.add("new", "acme")
    keys.write()

    async def key_is_accepted(name: str) -> bool:
        return (await error_of_request(guarded.service, keys.secrets[name]))[0] == 200

    async def key_is_refused() -> bool:
        return not await key_is_accepted("new")

    await eventually(lambda: key_is_accepted("new"), "the new key works")
    keys.file.write_text("keys: [nonsense]\n", encoding="utf-8")
    await asyncio.sleep(0)
    assert await key_is_accepted("new")
    del keys.records["new"]
    keys.write()
    await eventually(key_is_refused, "the revoked key is refused")
    assert await key_is_accepted("acme")


@pytest.mark.long
async def test_waiting_calls_survive_the_activation_of_access_control(serving: Serving) -> None:
    """Calls admitted before the change are answered; later calls need a key."""
    keys = KeyRing(serving.directory / "later.yaml")
    keys.add("team", "team")
    keys.write()
    async with serving.deployed_service(
        "turned", replicas=1, fake={"max_num_seqs": SEATS}
    ) as service:
        body = completion("w", 600)
        async with http_with_credential(service, None, x_justitia_tenant="team") as http:
            calls = [asyncio.create_task(http.post(COMPLETIONS, json=body)) for _ in range(12)]
            await service.until(lambda status: status["waiting"] > 0, "some wait")
            service.args["access"] = {"keys_file": str(keys.file)}
            await service.deploy()
            answers = await asyncio.gather(*calls)

        assert {200} == {answer.status_code for answer in answers}
        assert 401 == (await error_of_request(service, None))[0]
        assert 200 == (await error_of_request(service, keys.secrets["team"]))[0]
        await service.until_idle()


async def test_tenants_with_unequal_numbers_of_applications_share_equally(
    guarded: GuardedService,
) -> None:
    """One tenant has ten times as many waiting applications as the other."""
    service, secrets = guarded.service, guarded.keys.secrets
    async with (
        http_with_credential(service, secrets["acme"]) as acme,
        http_with_credential(service, secrets["beta"]) as beta,
        http_with_credential(service, secrets["gateway"], x_justitia_tenant="other") as other,
    ):
        steps = await race_two_tenants(service, other, [acme] * MANY, [beta] * FEW)
    await service.until_idle()

    assert FEW == steps[-1][1]
    assert max(abs(many - few) for many, few in steps) <= AHEAD
