"""A real Redis server for the tests of the stores, with a name of its own for each test."""

import itertools
from collections.abc import Iterator

import pytest
import redis

from justitia_ray.store.embedded import EmbeddedRedis
from justitia_ray.store.schema import Keys

_numbers = itertools.count()


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    server = EmbeddedRedis(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def raw(server: EmbeddedRedis) -> Iterator[redis.Redis]:
    """Redis client without a store, to inspect and damage stored values."""
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"app/model-{next(_numbers)}"


@pytest.fixture
def keys(name: str) -> Keys:
    return Keys(name)
