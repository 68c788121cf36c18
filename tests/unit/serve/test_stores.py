"""The store selected by a configuration, and the environment variables it reads."""

import time
from typing import Any

import pytest

from justitia_ray.config import AppConfig
from justitia_ray.errors import ConfigError
from justitia_ray.serve.scheduler.actor import SchedulerActor
from justitia_ray.serve.stores import (
    embedded_server,
    prediction_store,
    scheduler_store,
    store_credentials,
)
from justitia_ray.store.connection import Credentials
from justitia_ray.store.prediction_store import PredictionMemory
from justitia_ray.store.scheduler_store import NoStore, SchedulerStore
from tests.eventually import eventually


def config_with_store(**store: Any) -> AppConfig:
    return AppConfig.parse({"model": {"name": "m", "path": "none"}, "store": store})


def test_no_store_is_used_without_durability() -> None:
    """Without durability, not even the embedded Redis is started."""
    none = config_with_store(durability="none")

    assert embedded_server(none) is None
    assert isinstance(scheduler_store(none), NoStore)
    assert isinstance(prediction_store(none, None), PredictionMemory)


@pytest.mark.parametrize("durability", ["batched", "strict"])
async def test_durable_service_starts_an_embedded_redis_unless_one_is_configured(
    durability: str,
) -> None:
    """The service is durable by default, without a Redis server to install."""
    store = scheduler_store(config_with_store(durability=durability))

    assert isinstance(store, SchedulerStore)
    assert embedded_server(config_with_store(durability=durability)) is not None
    assert embedded_server(config_with_store(durability=durability, redis_url="redis://h")) is None
    await store.aclose()


def test_store_secrets_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration is logged, so it must not contain secrets."""
    monkeypatch.setenv("A", "redis-s3cret")
    monkeypatch.setenv("B", "sentinel-s3cret")
    found = store_credentials(
        config_with_store(
            redis_url="rediss+sentinel://h/s",
            redis_username="us",
            redis_password_env="A",
            redis_sentinel_password_env="B",
            redis_tls_ca_file="/ca.pem",
        )
    )

    assert Credentials("us", "redis-s3cret", "sentinel-s3cret", "/ca.pem") == found
    assert "s3cret" not in repr(found)


@pytest.mark.parametrize("key", ["redis_password_env", "redis_sentinel_password_env"])
def test_error_names_the_environment_variable_that_is_not_set(key: str) -> None:
    """The variable must be set on the scheduler's node, not only where `serve deploy` runs."""
    section = config_with_store(redis_url="redis+sentinel://h/s", **{key: "NOT_SET_ANYWHERE"})
    with pytest.raises(ConfigError, match=f"store.{key}: variable NOT_SET_ANYWHERE is not set"):
        scheduler_store(section)


async def test_epochs_of_schedulers_without_durability_increase() -> None:
    """Callers must follow a restarted actor although it remembers nothing."""
    values = config_with_store(durability="none").model_dump()
    epochs: list[int] = []
    for _ in range(2):
        # Epochs are milliseconds; in a test, a restart may take less than one.
        await eventually(lambda: max(epochs, default=0) < int(1000 * time.time()), "time passes")
        actor = SchedulerActor(values)
        epochs.append(await actor.configure({}))
        assert await actor.store_url() is None
        await actor.retire()

    assert 1_700_000_000_000 < epochs[0] < epochs[1]


async def test_restarted_scheduler_starts_above_the_epoch_that_its_callers_know() -> None:
    """After the wall clock was set back, callers would ignore an epoch taken from it."""
    actor = SchedulerActor(config_with_store(durability="none").model_dump())
    known = await actor.configure({}) + 10**9
    first = await (await actor.started()).poll_grants("i", known, 0)

    async def epoch_above_known() -> int | None:
        epoch = (await (await actor.started()).poll_grants("i", known, 0)).epoch
        return epoch if epoch > known else None

    second = await eventually(epoch_above_known, "it begins again")
    await actor.retire()

    assert first.epoch < known
    assert known + 1 == second
