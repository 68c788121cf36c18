"""One ingress of two models: each scheduler receives the settings of its own model."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from ray import serve

from justitia_ray.config import AppConfig
from justitia_ray.errors import ConfigError
from justitia_ray.serve.engines.factory import load_prompt_counter
from justitia_ray.serve.ingress import deployment as module
from justitia_ray.serve.ingress.deployment import Ingress

_ARGS = {
    "models": [{"name": "m", "path": "none"}, {"name": "org/n", "path": "none"}],
    "engine": {"kind": "fake"},
    "metrics": {"enabled": False},  # No metrics exporter exists without a cluster.
}


class RecordingHandle:
    """Fake actor handle with answers to status, table and configure; other calls hang."""

    def __init__(self) -> None:
        self.policies: list[str] = []
        self.options_of_policy: list[dict[str, Any]] = []

    def options(self, **options: Any) -> "RecordingHandle":
        return self

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(
            remote=getattr(type(self), f"_{name}", RecordingHandle._hang).__get__(self)
        )

    async def _configure(self, settings: dict[str, Any]) -> int:
        self.policies.append(settings["policy"])
        self.options_of_policy.append(settings["policy_options"])
        return 1

    async def _status(self, applications: int) -> dict[str, Any]:
        return {"ready": True, "degraded": None, "replicas": {}, "policy": self.policies[-1]}

    async def _table(self) -> dict[str, Any]:
        return {"classes": {}, "stages": {}}

    async def _hang(self, *arguments: Any) -> None:
        await asyncio.Event().wait()


class WithoutServe(Ingress):
    """Ingress that Ray Serve neither starts nor stops."""

    async def stop(self) -> None:
        await Ingress.__del__(self)

    def __del__(self) -> None:  # type: ignore[override]  # Serve awaits that one
        pass


@pytest.fixture
def schedulers() -> dict[str, RecordingHandle]:
    return {"m": RecordingHandle(), "org/n": RecordingHandle()}


@pytest.fixture
async def ingress(
    schedulers: dict[str, RecordingHandle], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[WithoutServe]:
    async def find_scheduler(config: AppConfig) -> RecordingHandle:
        return schedulers[config.model.name]

    monkeypatch.setattr(module, "get_current_scheduler", find_scheduler)
    context = SimpleNamespace(app_name="a", replica_id=SimpleNamespace(unique_id="i"))
    monkeypatch.setattr(serve, "get_replica_context", lambda: context)
    found = object.__new__(WithoutServe)
    parts: Any = [(RecordingHandle(), RecordingHandle()), (RecordingHandle(), RecordingHandle())]
    await Ingress.__init__(found, _ARGS, parts, load_prompt_counter)
    yield found
    await found.stop()


async def test_settings_reach_the_scheduler_of_their_model(
    ingress: WithoutServe, schedulers: dict[str, RecordingHandle]
) -> None:
    await ingress.reconfigure({"policy": "vtc", "models": {"org/n": {"policy": "fcfs"}}})
    await ingress.reconfigure({"policy": "srjf", "models": {"org/n": {"policy": "fcfs"}}})

    assert ["vtc", "srjf"] == schedulers["m"].policies
    assert ["fcfs", "fcfs"] == schedulers["org/n"].policies


async def test_deprioritising_quota_sets_tenant_fairness_for_every_model(
    ingress: WithoutServe, schedulers: dict[str, RecordingHandle]
) -> None:
    quota = {"unit": "inferences", "limit": 1, "per": "day", "on_exhausted": "deprioritise"}
    models = {"org/n": {"policy_options": {"backfill": 2}}}
    await ingress.reconfigure({"tenants": {"a": {"quotas": [quota]}}, "models": models})

    assert schedulers["m"].options_of_policy == [{"fairness": "tenant"}]
    assert schedulers["org/n"].options_of_policy == [{"backfill": 2, "fairness": "tenant"}]


@pytest.mark.parametrize("models", [{"x": {}}, {"org/n": {"policy": "fifo"}}])
async def test_invalid_settings_of_one_model_change_neither_model(
    ingress: WithoutServe, schedulers: dict[str, RecordingHandle], models: dict[str, Any]
) -> None:
    """A change that reached only one of two models would be worse than none.

    The operator fixes the file and deploys it again.
    """
    with pytest.raises(ConfigError, match=r"models"):
        await ingress.reconfigure({"policy": "vtc", "models": models})

    assert [] == schedulers["m"].policies == schedulers["org/n"].policies


async def test_query_string_of_a_handle_call_selects_the_model(ingress: WithoutServe) -> None:
    await ingress.reconfigure({"models": {"org/n": {"policy": "fcfs"}}})
    status, _, body = await ingress.call("GET", "/v1/status?model=org%2Fn", {}, b"")

    assert 200 == status
    assert b'"policy":"fcfs"' in body
