"""Attempts of one tenant to gain access or service from another by its calls."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.harness.bodies import CHAT, COMPLETIONS, chat, completion
from tests.harness.key_ring import KeyRing
from tests.harness.service import Service
from tests.integration.access.guarded import GuardedService, http_with_credential
from tests.integration.access.shares import AHEAD, FEW, MANY, Steps, race_two_tenants
from tests.integration.test_abuse import RawConnection

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.asyncio(loop_scope="session")]

_WITHIN_S = 30.0
_IDLE_CONNECTIONS = 300
_OPENING = {"application_class": "c", "application_id": "report"}

Json = dict[str, Any]


@dataclass
class AttackerAndVictim:
    """Client of an attacker, and a victim with an open application `report`."""

    service: Service
    keys: KeyRing
    victim: httpx.AsyncClient
    attacker: httpx.AsyncClient

    async def report(self) -> Json:
        answer = await self.victim.get("/v1/applications/report")
        assert 200 == answer.status_code
        state: Json = answer.json()
        return state


@pytest_asyncio.fixture(loop_scope="session")
async def rivals(guarded: GuardedService) -> AsyncIterator[AttackerAndVictim]:
    """Open the victim's application; cancel everything at the end."""
    keys, service = guarded.keys, guarded.service
    async with (
        http_with_credential(service, keys.secrets["victim"]) as victim,
        http_with_credential(service, keys.secrets["attacker"]) as attacker,
    ):
        rivals = AttackerAndVictim(service, keys, victim, attacker)
        assert 200 == (await victim.post("/v1/applications", json=_OPENING)).status_code
        yield rivals
        await victim.delete("/v1/applications/report")
        await attacker.delete("/v1/applications/report")
    await service.until_idle()


Attempt = Callable[[AttackerAndVictim], Awaitable[list[int]]]


async def read_application(rivals: AttackerAndVictim) -> list[int]:
    """Try to read the victim's application by id, on the operators' path, and as its tenant."""
    paths = ("report", "acme/search|report", "acme%2Fsearch%7Creport")
    found = [await rivals.attacker.get(f"/v1/applications/{path}") for path in paths]
    return [answer.status_code for answer in found]


async def close_application(rivals: AttackerAndVictim) -> list[int]:
    found = []
    for path in ("report", "acme/search|report"):
        found.append(await rivals.attacker.post(f"/v1/applications/{path}/close"))
        found.append(await rivals.attacker.delete(f"/v1/applications/{path}"))
    return [answer.status_code for answer in found]


async def name_the_victim(rivals: AttackerAndVictim) -> list[int]:
    """Try to name the victim as the tenant in a header, a body and a path."""
    calls = []
    for tenant in ("acme/search", "acme", "beta/../acme/search", "beta//acme", "beta|acme/search"):
        header = {"x-justitia-tenant": tenant}
        calls += [
            rivals.attacker.get("/v1/applications/report", headers=header),
            rivals.attacker.delete("/v1/applications/report", headers=header),
            rivals.attacker.post("/v1/applications", json=_OPENING | {"tenant": tenant}),
            rivals.attacker.post(COMPLETIONS, json=completion(), headers=header),
        ]
    return [(await call).status_code for call in calls]


async def smuggle_headers(rivals: AttackerAndVictim) -> list[int]:
    """Send the tenant header twice, in another spelling, and with both credentials."""
    twice = [("x-justitia-tenant", "beta"), ("X-Justitia-Tenant", "acme/search")]
    keys = [("authorization", "Bearer jk-wrong"), ("x-api-key", rivals.keys.secrets["attacker"])]
    statuses = []
    for headers in (twice, keys, [*keys[:1], *keys[:1]], [("authorization", "Basic YTpi")]):
        request = httpx.Request(
            "GET", f"{rivals.service.url}/v1/applications/report", headers=headers
        )
        if headers is twice:
            request.headers["authorization"] = f"Bearer {rivals.keys.secrets['attacker']}"
        async with httpx.AsyncClient() as http:
            statuses.append((await http.send(request)).status_code)
    return statuses


async def ask_for_weight(rivals: AttackerAndVictim) -> list[int]:
    """Request a weight above the tenant's limit."""
    weights = [1.0001, 1e6]
    calls = [
        rivals.attacker.post("/v1/applications", json=_OPENING | {"weight": weight})
        for weight in weights
    ]
    answers = [await call for call in calls]
    assert "at most 1" in answers[0].json()["error"]["message"]
    return [answer.status_code for answer in answers]


async def use_operator_paths(rivals: AttackerAndVictim) -> list[int]:
    """Try to read the status of the whole service, and to roll the predictor back."""
    calls = [
        rivals.attacker.get("/v1/status?applications=10"),
        rivals.attacker.get("/v1/examination"),
        rivals.attacker.get("/v1/predictor"),
        rivals.attacker.post("/v1/predictor/c/rollback", json={}),
        rivals.attacker.post("/v1/predictor/samples", json={"samples": [{}]}),
    ]
    return [(await call).status_code for call in calls]


@pytest.mark.parametrize(
    ("attempt", "allowed"),
    [
        (read_application, {404}),
        (close_application, {404}),
        (name_the_victim, {400, 403, 404}),
        (smuggle_headers, {400, 401}),
        (ask_for_weight, {403}),
        (use_operator_paths, {403}),
    ],
)
async def test_attack_leaves_another_tenants_application_unchanged(
    rivals: AttackerAndVictim, attempt: Attempt, allowed: set[int]
) -> None:
    before = await rivals.report()
    statuses = await attempt(rivals)
    after = await rivals.report()

    assert set(statuses) <= allowed
    assert before | {"age_s": 0} == after | {"age_s": 0}


async def test_equal_ids_of_two_tenants_are_two_applications(rivals: AttackerAndVictim) -> None:
    """A call that joins an application by id must not be charged to another tenant."""
    joined = {"x-justitia-application": "report"}
    answer = await rivals.attacker.post(COMPLETIONS, json=completion(), headers=joined)
    its_own = (await rivals.attacker.get("/v1/applications/report")).json()

    assert 200 == answer.status_code
    assert ("beta", 1) == (its_own["tenant"], its_own["ended"])
    assert 0 == (await rivals.report())["ended"]


async def test_equal_idempotency_keys_of_two_tenants_are_two_calls(
    rivals: AttackerAndVictim,
) -> None:
    """An answer kept for one tenant's retry must not be returned to another tenant."""
    key = {"idempotency-key": "retry-1", "x-justitia-application": "report"}
    body = completion("secret words of acme")
    # The attacker has an application with the same id.
    opened = await rivals.attacker.post("/v1/applications", json=_OPENING)
    assert 200 == opened.status_code
    asked = await rivals.victim.post(COMPLETIONS, json=body, headers=key)
    again = await rivals.victim.post(COMPLETIONS, json=body, headers=key)
    stolen = await rivals.attacker.post(COMPLETIONS, json=body, headers=key)

    assert asked.json()["id"] == again.json()["id"]
    assert asked.json()["id"] != stolen.json()["id"]
    assert 1 == (await rivals.report())["ended"]


async def test_equal_conversations_of_two_tenants_are_two_applications(
    rivals: AttackerAndVictim,
) -> None:
    said = chat("secret words of acme")
    answer = (await rivals.victim.post(CHAT, json=said)).json()["choices"][0]["message"]
    overheard = said | {"messages": [*said["messages"], answer, *said["messages"]]}
    session = {"x-claude-code-session-id": "s"}
    found = {
        client: [
            (await client.post(CHAT, json=body, headers=headers)).headers["x-justitia-application"]
            for body, headers in ((overheard, {}), (said, session))
        ]
        for client in (rivals.victim, rivals.attacker)
    }
    (goes_on, _), (stolen, its_session) = found.values()
    theirs = await rivals.attacker.get(f"/v1/applications/{its_session}")
    await rivals.victim.delete("/v1/applications/claude-code/s")
    await rivals.attacker.delete("/v1/applications/claude-code/s")

    assert goes_on != stolen
    assert "beta" == theirs.json()["tenant"]


async def race_attacker(rivals: AttackerAndVictim, attackers: Sequence[httpx.AsyncClient]) -> Steps:
    """Race the attacker's clients against the victim, which makes fewer calls."""
    async with http_with_credential(rivals.service, rivals.keys.secrets["third"]) as third:
        return await race_two_tenants(rivals.service, third, attackers, [rivals.victim] * FEW)


async def test_tenant_gains_no_share_by_more_api_keys(rivals: AttackerAndVictim) -> None:
    """Five keys of one tenant open ten times as many applications as one key of the other."""
    async with AsyncExitStack() as stack:
        keys = [
            await stack.enter_async_context(
                http_with_credential(rivals.service, rivals.keys.secrets[f"more-{number}"])
            )
            for number in range(5)
        ]
        steps = await race_attacker(rivals, keys * (MANY // len(keys)))

    assert max(abs(many - few) for many, few in steps) <= AHEAD


async def test_tenant_gains_no_share_by_more_subtenants(rivals: AttackerAndVictim) -> None:
    """A key that alternates between ten sub-tenants has one share in all."""
    async with AsyncExitStack() as stack:
        names = [
            await stack.enter_async_context(
                http_with_credential(
                    rivals.service,
                    rivals.keys.secrets["attacker"],
                    x_justitia_tenant=f"beta/{number}",
                )
            )
            for number in range(10)
        ]
        steps = await race_attacker(rivals, names * (MANY // len(names)))

    assert max(abs(many - few) for many, few in steps) <= AHEAD


async def test_service_does_not_read_the_body_of_a_call_without_a_credential(
    rivals: AttackerAndVictim,
) -> None:
    """The refusal is sent before the body has arrived, however long or slow the body is."""
    raw = RawConnection(rivals.service)
    await raw.send_head("Content-Length: 1000000000")
    answer = await asyncio.wait_for(raw.read_until(b"\r\n\r\n"), _WITHIN_S)
    raw.close()

    assert b" 401 " in answer.splitlines()[0]


@pytest.mark.parametrize("name", ["attacker", "nobody"])
async def test_callers_with_slow_bodies_do_not_delay_other_calls(
    rivals: AttackerAndVictim, name: str
) -> None:
    """The slow callers connect, send a part of a body, and stop."""
    secret = rivals.keys.secrets.get(name, "jk-wrong")
    slow = [RawConnection(rivals.service) for _ in range(_IDLE_CONNECTIONS)]
    for raw in slow:
        await raw.send_head("Content-Length: 1000", f"Authorization: Bearer {secret}")
        await raw.send_bytes(b'{"prompt": "')
    answer = await asyncio.wait_for(rivals.victim.post(COMPLETIONS, json=completion()), _WITHIN_S)
    for raw in slow:
        raw.close()

    assert 200 == answer.status_code


async def test_flood_of_wrong_keys_slows_no_call_with_a_right_key(
    rivals: AttackerAndVictim,
) -> None:
    """Answers to wrong keys are delayed; answers to a right key are not."""
    async with http_with_credential(rivals.service, None) as http:

        async def call_with_wrong_key(number: int) -> int:
            key = {"x-api-key": f"jk-{number}"}
            return (await http.post(COMPLETIONS, json=completion(), headers=key)).status_code

        guesses = [asyncio.create_task(call_with_wrong_key(number)) for number in range(300)]
        answer = await rivals.victim.post(COMPLETIONS, json=completion())
        statuses = await asyncio.gather(*guesses)

    assert 200 == answer.status_code
    assert {401} == set(statuses)
