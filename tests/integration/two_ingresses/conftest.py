"""Application behind two ingresses that the tests of this folder share."""

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from justitia_ray.config import RecognitionSection
from tests.harness.otlp_receiver import OtlpReceiver, otlp_receiver

if TYPE_CHECKING:
    from tests.harness.service import Service, Serving

NAME = "two-ingresses"
INGRESSES = 2


@pytest.fixture(scope="package")
def collector() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as received:
        yield received


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def service(serving: "Serving", collector: OtlpReceiver) -> AsyncIterator["Service"]:
    """Application with one engine that recognises conversations and traces every application."""
    headers = serving.directory / "otlp-headers"
    headers.write_text("authorization=Bearer%20of-the-collector\n")
    service = serving.service(
        NAME,
        replicas=1,
        recognition={
            "rules": [*RecognitionSection().rules, "conversation"],
            "conversation_idle_s": 60.0,
        },
        tracing={"endpoint": collector.url, "sample_ratio": 1.0, "headers_file": str(headers)},
    )
    service.ingresses = INGRESSES
    await service.deploy()
    yield service
    serving.retire(NAME)
