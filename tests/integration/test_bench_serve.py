"""Every arm of `scripts/bench_serve` answers every kind of call, and its report is complete."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from justitia_ray.config import AppConfig
from scripts import bench_serve
from scripts.bench.agents import AgentSession, Turn
from scripts.bench.agents_player import AgentPlayer
from scripts.bench.load import Target
from scripts.bench.own_servers import litellm_proxy, release_cluster
from scripts.bench.serve_arms import (
    DIRECT,
    JUSTITIA,
    LITELLM,
    Arm,
    RunningArms,
    arm_application,
    arm_args,
    guarded,
    release_arm,
    scheduler_roles,
)
from scripts.bench.serve_loads import METRICS, SETTINGS, Load, arms_of, queue_loads
from tests.harness.local_cluster import read_serve_config
from tests.harness.service import Service, Serving

pytestmark = [pytest.mark.long, pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_CODE = Path(__file__).parents[2]
_FILE = _CODE / "deployments" / "local-fake.yaml"
_FAKE = SETTINGS["path"].fake
_RELEASE = release_arm(_CODE)
"""This release of the project, in place of an earlier release."""
_PATH_LOADS = SETTINGS["path"].choose_loads(None, quick=True, release=_RELEASE)
_VARIANT = Arm("unjoined", chunk_interval_s=0.0, metrics=False)
"""Benchmark variant that the tests use for all variants of the service."""
_QUEUE_LOADS = queue_loads(
    quick=True, ours=JUSTITIA, theirs=DIRECT, joined=JUSTITIA, unjoined=_VARIANT
)
_ACCESS_LOADS = tuple(
    replace(load, baseline=_VARIANT) for load in SETTINGS["access"].loads(quick=True)
)
_METRICS_LOADS = tuple(
    replace(load, arms=(JUSTITIA,), baseline=_VARIANT)
    for load in SETTINGS["metrics"].loads(quick=True)
)
_QUOTA_LOADS = tuple(
    replace(load, baseline=_VARIANT) for load in SETTINGS["quotas"].loads(quick=True)
)
_TRACING_LOADS = tuple(
    replace(load, arms=load.arms[:1], baseline=_VARIANT)
    for load in SETTINGS["tracing"].loads(quick=True)
)
_ALL_ARMS = (
    *arms_of((*_PATH_LOADS, *_ACCESS_LOADS, *_QUOTA_LOADS)),
    *arms_of(_TRACING_LOADS)[1:],
)


def shortened_loads(loads: Sequence[Load]) -> list[Load]:
    """Return the loads of the benchmark, shortened to a few calls each."""
    return [
        replace(load, callers=1, calls=1)
        if load.callers == 1
        else replace(load, callers=2, calls=6)
        for load in loads
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running(serving: Serving) -> AsyncIterator[RunningArms]:
    """Benchmark variants with one engine each, on the test cluster or as separate servers."""
    application = read_serve_config(_FILE)["applications"][0]
    application["args"]["scheduler"] = {"namespace": serving.namespace}
    beside = (LITELLM, _RELEASE)
    on_serve = [arm for arm in _ALL_ARMS if arm not in beside]
    redis = str(serving.directory / "redis")
    applications = [arm_application(application, arm, 1, redis, _FAKE) for arm in on_serve]
    config = AppConfig.parse(arm_args(application["args"], LITELLM, _FAKE))
    release = arm_application(application, _RELEASE, 1, redis, _FAKE)
    with ExitStack() as stack:
        credentials = stack.enter_context(guarded(applications, on_serve, serving.directory))
        for arm, values in zip(on_serve, applications, strict=True):
            serving.add(Service(serving, arm.name, str(arm.import_path), 1, {}, values["args"]))
        proxy = await asyncio.to_thread(stack.enter_context, litellm_proxy(config, 1))
        cluster = await asyncio.to_thread(stack.enter_context, release_cluster(_CODE, release))
        async with serving.deployed_applications(*applications):
            port = int(serving.base_url.rpartition(":")[2])
            targets = {
                arm.name: Target(port, f"/{arm.name}", credential=credentials.get(arm.name, ""))
                for arm in on_serve
            }
            roles = await asyncio.to_thread(scheduler_roles, port, on_serve, credentials)
            running = RunningArms(config, targets, roles)
            running.add_server(LITELLM, proxy, "")
            running.add_server(_RELEASE, cluster, f"/{_RELEASE.name}")
            yield running


@pytest.mark.parametrize(
    ("setting", "loads"),
    [
        ("path", _PATH_LOADS),
        ("fake", _QUEUE_LOADS),
        ("metrics", _METRICS_LOADS),
        ("access", _ACCESS_LOADS),
        ("quotas", _QUOTA_LOADS),
        ("tracing", _TRACING_LOADS),
    ],
    ids=["path", "fake", METRICS, "access", "quotas", "tracing"],
)
async def test_every_benchmark_variant_answers_every_kind_of_call(
    running: RunningArms,
    capsys: pytest.CaptureFixture[str],
    setting: str,
    loads: tuple[Load, ...],
) -> None:
    """The benchmark runs rarely; a failing variant would otherwise be noticed months later."""
    said: list[str] = []
    short = replace(SETTINGS[setting], warm_up_calls=2)
    found = await asyncio.to_thread(
        bench_serve.measure, short, shortened_loads(loads), running, 1, 0.1, 1, said.append
    )

    printed = capsys.readouterr().out
    assert ["repeat 1 of 1"] == said
    for load in loads:
        assert {arm.name for arm in load.all_arms} == set(found["blocks"][load.name])
        assert load.name in printed
    assert "idle burn" in printed
    json.dumps(found)


async def test_service_answers_all_sessions_of_bench_agents(running: RunningArms) -> None:
    """Agents' turns have the intended lengths even where answers contain no token ids."""
    turns = (Turn(0.0, 0, 40, 4), Turn(0.01, 44, 6, 3))
    sessions = [AgentSession(f"s{i}", 0.0, 16, turns) for i in range(3)]
    target = running.targets[JUSTITIA.name]
    player = AgentPlayer([target], running.config.model.name, "agents", is_ours=True)

    play = await player.play(sessions)

    assert () == play.errors
    assert {"s0", "s1", "s2"} == set(play.completion_s)
    assert 6 == len(play.turns)
