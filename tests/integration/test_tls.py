"""TLS for callers: Serve's own proxy supports it; with HAProxy the deployment is refused."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from justitia_ray.doctor.report import find
from justitia_ray.doctor.rule import Look
from justitia_ray.errors import JustitiaError
from justitia_ray.protocol.inspection import read_inspection
from tests.certificates import Authority
from tests.integration.bodies import COMPLETIONS, completion
from tests.integration.front_cluster import FrontCluster, front_cluster
from tests.integration.load import OpenStream

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_ARGS = {"engine": {"kind": "fake", "fake": {"iteration_s": 0.001}}}
_TOKENS = 20


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.of(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> dict[str, str]:
    file, key = authority.issue("front", "127.0.0.1")
    return {"ssl_certfile": str(file), "ssl_keyfile": str(key)}


# This runs before the other cluster's tests, because only one cluster can run at a time.
async def test_certificate_behind_haproxy_is_refused_at_deployment(
    certificate: dict[str, str],
) -> None:
    """Serve accepts the options but would start a proxy that reaches no ingress.

    `test_haproxy` shows that HAProxy without a certificate is accepted.
    """

    def start() -> None:
        with front_cluster({}, _ARGS, certificate):
            pass

    with pytest.raises(JustitiaError) as refused:
        await asyncio.to_thread(start)
    said = str(refused.value)
    assert said.startswith("justitia did not come up")
    assert "http_options.ssl_certfile: HAProxy, the front of this cluster, has no TLS" in said
    assert "leave http_options.ssl_* out" in said


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(certificate: dict[str, str]) -> AsyncIterator[FrontCluster]:
    """Cluster with Serve's own proxy and a certificate."""
    front = {"RAY_SERVE_ENABLE_HA_PROXY": "0"}
    with ExitStack() as stack:
        starting = front_cluster(front, _ARGS, certificate)
        yield await asyncio.to_thread(stack.enter_context, starting)
        await asyncio.to_thread(stack.close)


def caller(cluster: FrontCluster, trusted: Authority) -> httpx.AsyncClient:
    """Return an HTTP client that trusts only one authority."""
    context = ssl.create_default_context(cafile=str(trusted.file))
    return httpx.AsyncClient(base_url=cluster.url, timeout=60.0, verify=context)


async def test_caller_who_trusts_the_authority_is_answered(
    cluster: FrontCluster, authority: Authority
) -> None:
    """Both unary and streamed answers arrive, and the stream is not held back until its end."""
    async with caller(cluster, authority) as http:
        whole = await http.post(COMPLETIONS, json=completion(max_tokens=_TOKENS))
        stream = OpenStream(http, completion(max_tokens=_TOKENS))
        end = await stream.end()

    assert cluster.url.startswith("https://")
    assert 200 == whole.status_code
    assert _TOKENS == whole.json()["usage"]["completion_tokens"]
    assert "[DONE]" == end
    assert len(stream.events) > _TOKENS
    assert set() == cluster.haproxies()


async def test_caller_who_trusts_another_authority_sends_nothing(
    cluster: FrontCluster, tmp_path: Path
) -> None:
    """A server that impersonates the service must not receive prompts."""
    async with caller(cluster, Authority.of(tmp_path / "others")) as http:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await http.post(COMPLETIONS, json=completion())


async def test_caller_without_tls_gets_no_answer(cluster: FrontCluster) -> None:
    """Prompts and keys are not accepted in plaintext beside TLS."""
    url = cluster.url.replace("https://", "http://")
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as http:
        with pytest.raises(httpx.TransportError):
            await http.get("/healthz")


async def test_doctor_sees_the_certificate_and_recommends_no_haproxy(
    cluster: FrontCluster, authority: Authority
) -> None:
    """HAProxy could run here, but the next deployment would refuse it."""
    async with caller(cluster, authority) as http:
        answer: dict[str, Any] = (await http.get("/v1/examination")).json()
    look = Look(read_inspection(answer))

    assert ("serve", True) == (answer["serve"]["front"], answer["serve"]["tls"])
    assert answer["ingress"]["front"]["haproxy_can_run"]
    assert not {"front_that_could_be_cheaper", "tls_behind_haproxy"} & {
        finding.rule for finding in find(look, look)
    }
