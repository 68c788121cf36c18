"""HAProxy in front of the service under other options of Serve: each test has its own cluster."""

import httpx
import pytest

from justitia_ray.errors import JustitiaError
from tests.certificates import Authority
from tests.harness.front_cluster import front_cluster
from tests.integration.serve_front.conftest import ARGS, LIMIT_S
from tests.integration.serve_front.test_request_timeout import check_call_ends_at_the_limit

pytestmark = [pytest.mark.long, pytest.mark.ray]


def test_deployment_behind_haproxy_refuses_a_serve_certificate(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Serve accepts a certificate, but would start an HAProxy that reaches no ingress.

    `test_haproxy` shows that HAProxy without a certificate is accepted.
    """
    file, key = Authority.in_folder(tmp_path_factory.mktemp("tls") / "ours").issue(
        "front", "127.0.0.1"
    )
    certificate = {"ssl_certfile": str(file), "ssl_keyfile": str(key)}
    with pytest.raises(JustitiaError) as refused, front_cluster({}, ARGS, certificate):
        pass
    said = str(refused.value)

    assert said.startswith("justitia did not come up")
    assert "http_options.ssl_certfile: HAProxy, the front of this cluster, has no TLS" in said
    assert "leave http_options.ssl_* out" in said


@pytest.mark.asyncio
async def test_serves_request_timeout_ends_a_call() -> None:
    """A caller's header that asks for no time limit must be ignored."""
    with front_cluster({}, ARGS, {"request_timeout_s": LIMIT_S}) as cluster:
        async with httpx.AsyncClient(
            base_url=cluster.url, timeout=60.0, headers={"x-request-timeout-seconds": "0"}
        ) as http:
            await check_call_ends_at_the_limit(http, LIMIT_S)
