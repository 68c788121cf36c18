"""Every live arm of `scripts/bench_recognition` answers and is recognised as intended."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from justitia_ray.config import AppConfig
from scripts import bench_recognition
from scripts.bench.load import Target
from scripts.bench.recognition_live import ARMS, FAKE, LiveSize
from scripts.bench.recognition_report import document
from scripts.bench.serve_arms import RunningArms, arm_application
from tests.harness.local_cluster import read_serve_config
from tests.harness.service import Service, Serving

pytestmark = [pytest.mark.long, pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_FILE = Path(__file__).parents[2] / "deployments" / "local-fake.yaml"
_FEW = LiveSize({"FV": 2, "KBQAV": 1})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running(serving: Serving) -> AsyncIterator[RunningArms]:
    """Variants of the recognition benchmark (its arms), with one fast engine each."""
    application = read_serve_config(_FILE)["applications"][0]
    application["args"]["scheduler"] = {"namespace": serving.namespace}
    redis = str(serving.directory / "redis")
    fast = {**FAKE, "iteration_s": 0.001}
    applications = [arm_application(application, arm, 1, redis, fast) for arm in ARMS]
    for arm, values in zip(ARMS, applications, strict=True):
        serving.add(Service(serving, arm.name, str(arm.import_path), 1, {}, values["args"]))
    async with serving.deployed_applications(*applications):
        port = int(serving.base_url.rpartition(":")[2])
        targets = {arm.name: Target(port, f"/{arm.name}") for arm in ARMS}
        yield RunningArms(AppConfig.parse(application["args"]), targets)


async def test_every_benchmark_variant_is_recognised_as_intended(
    running: RunningArms, capsys: pytest.CaptureFixture[str]
) -> None:
    """Calls that repeat nothing of a conversation are only recognised by a header.

    The answers state what the service has counted.
    """
    plays = await asyncio.to_thread(bench_recognition.measure, running, _FEW, (1,), None)
    plain, conversation, header = (plays.placed[arm.name] for arm in ARMS)

    assert [(0, 0), (conversation.repeating, 0), (header.following, 0)] == [
        (one.right, one.wrong) for one in (plain, conversation, header)
    ]
    assert 0 < conversation.repeating < header.following
    assert {
        "plain": {"none": plain.calls},
        "conversation": {
            "conversation": conversation.right,
            "new_conversation": conversation.calls - conversation.right,
        },
        "header": {"header": header.calls},
    } == plays.recognised
    printed = capsys.readouterr().out
    assert all(arm.name in printed for arm in ARMS)
    json.dumps(document([], plays))
