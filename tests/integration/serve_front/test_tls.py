"""TLS between callers and Serve's own proxy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from justitia_ray.doctor.report import find
from justitia_ray.doctor.rule import Snapshot
from justitia_ray.protocol.inspection import read_inspection
from tests.certificates import Authority
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.front_cluster import FrontCluster
from tests.harness.open_calls import OpenStream

pytestmark = [
    pytest.mark.ray,
    pytest.mark.after_engines,
    pytest.mark.asyncio(loop_scope="session"),
]

Caller = Callable[..., httpx.AsyncClient]

_TOKENS = 20


async def test_caller_that_trusts_the_certificate_authority_is_answered(
    cluster: FrontCluster, caller: Caller
) -> None:
    """Unary and streamed answers arrive, and a stream is not held back until its end."""
    async with caller() as http:
        whole = await http.post(COMPLETIONS, json=completion(max_tokens=_TOKENS))
        stream = OpenStream(http, completion(max_tokens=_TOKENS))
        end = await stream.end()

    assert cluster.url.startswith("https://")
    assert 200 == whole.status_code
    assert _TOKENS == whole.json()["usage"]["completion_tokens"]
    assert "[DONE]" == end
    assert len(stream.events) > _TOKENS
    assert set() == cluster.haproxy_process_ids()


async def test_caller_that_trusts_another_certificate_authority_sends_nothing(
    caller: Caller, tmp_path: Path
) -> None:
    """A server that impersonates the service must not receive prompts."""
    async with caller(Authority.in_folder(tmp_path / "others")) as http:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await http.post(COMPLETIONS, json=completion())


async def test_caller_without_tls_gets_no_answer(cluster: FrontCluster) -> None:
    """A TLS service must not accept prompts and keys in plaintext."""
    url = cluster.url.replace("https://", "http://")
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as http:
        with pytest.raises(httpx.TransportError):
            await http.get("/healthz")


async def test_doctor_accepts_serves_proxy_where_it_has_a_certificate(
    caller: Caller,
) -> None:
    """The doctor usually recommends HAProxy, which would refuse this certificate."""
    async with caller() as http:
        answer: dict[str, Any] = (await http.get("/v1/examination")).json()
    look = Snapshot(read_inspection(answer))

    assert ("serve", True) == (answer["serve"]["front"], answer["serve"]["tls"])
    assert answer["ingress"]["front"]["haproxy_can_run"]
    assert not {"front_that_could_be_cheaper", "tls_behind_haproxy"} & {
        finding.rule for finding in find(look, look)
    }
