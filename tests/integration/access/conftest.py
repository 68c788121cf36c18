"""Application with access control that the tests of this folder share."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest_asyncio

from justitia_ray.config import RecognitionSection
from tests.harness.key_ring import KeyRing
from tests.harness.token_issuer import running_issuer

if TYPE_CHECKING:
    from tests.harness.service import Serving
    from tests.integration.access.guarded import GuardedService


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def guarded(serving: "Serving") -> AsyncIterator["GuardedService"]:
    """Application with API keys, on one engine with few seats; each test leaves it idle."""
    from tests.integration.access.guarded import GuardedService
    from tests.integration.access.shares import SEATS

    keys = KeyRing(serving.directory / "keys.yaml")
    keys.add("acme", "acme", max_weight=2.0)
    keys.add("beta", "beta")
    keys.add("looks", "acme", "own")
    keys.add("operator", "ops", "operate")
    keys.add("gateway", None, "proxy", "infer", "own")
    keys.add("victim", "acme/search")
    keys.add("attacker", "beta")
    keys.add("third", "gamma")
    for number in range(5):
        keys.add(f"more-{number}", "beta")
    keys.write()
    with running_issuer(serving.directory) as issuer:
        jwt = {
            "issuer": issuer.url,
            "audience": "justitia",
            "jwks_ca_file": str(issuer.ca_file),
            "tenant_claim": "org.team",
            "tenant_below": "acme",
        }
        async with serving.deployed_service(
            "guarded",
            replicas=1,
            fake={"max_num_seqs": SEATS},
            access={"keys_file": str(keys.file), "reload_s": 0.1, "jwt": [jwt]},
            recognition={
                "rules": [*RecognitionSection().rules, "conversation"],
                "conversation_idle_s": 0.5,
            },
        ) as service:
            yield GuardedService(service, keys, issuer)
