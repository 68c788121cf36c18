"""Which stores a configuration means, and what they take from the environment."""

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


def config(**store: Any) -> AppConfig:
    """Return a configuration with this section."""
    return AppConfig.parse({"model": {"name": "m", "path": "none"}, "store": store})


def test_without_durability_nothing_is_started_or_stored() -> None:
    """No Redis at all: also none of our own."""
    none = config(durability="none")

    assert embedded_server(none) is None
    assert isinstance(scheduler_store(none), NoStore)
    assert isinstance(prediction_store(none, None), PredictionMemory)


@pytest.mark.parametrize("durability", ["batched", "strict"])
async def test_with_it_there_is_a_redis_of_ours_unless_one_is_named(durability: str) -> None:
    """Durable by default, without a server to install."""
    store = scheduler_store(config(durability=durability))

    assert isinstance(store, SchedulerStore)
    assert embedded_server(config(durability=durability)) is not None
    assert embedded_server(config(durability=durability, redis_url="redis://h")) is None
    await store.aclose()


def test_secrets_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never from the configuration, which is logged; nor are they shown with the rest."""
    monkeypatch.setenv("A", "redis-s3cret")
    monkeypatch.setenv("B", "sentinel-s3cret")
    found = store_credentials(
        config(
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
def test_variable_that_is_not_set_is_named(key: str) -> None:
    """It has to be set on the node of the scheduler, not only where one deploys."""
    section = config(redis_url="redis+sentinel://h/s", **{key: "NOT_SET_ANYWHERE"})
    with pytest.raises(ConfigError, match=f"store.{key}: variable NOT_SET_ANYWHERE is not set"):
        scheduler_store(section)


async def test_actor_without_durability_serves_and_its_epochs_rise() -> None:
    """A restarted one has to be listened to, though it remembers nothing."""
    values = config(durability="none").model_dump()
    epochs: list[int] = []
    for _ in range(2):
        # They are milliseconds, and a restart takes longer than one: here it might not.
        await eventually(lambda: max(epochs, default=0) < int(1000 * time.time()), "time passes")
        actor = SchedulerActor(values)
        epochs.append(await actor.configure({}))
        assert await actor.store_url() is None
        await actor.retire()

    assert 1_700_000_000_000 < epochs[0] < epochs[1]


async def test_actor_takes_office_above_an_epoch_that_its_callers_know() -> None:
    """The wall clock was set back: nobody would listen to what it says by itself."""
    actor = SchedulerActor(config(durability="none").model_dump())
    known = await actor.configure({}) + 10**9
    first = await (await actor.started()).poll_grants("i", known, 0)

    async def higher() -> int | None:
        epoch = (await (await actor.started()).poll_grants("i", known, 0)).epoch
        return epoch if epoch > known else None

    second = await eventually(higher, "it begins again")
    await actor.retire()

    assert first.epoch < known
    assert known + 1 == second
