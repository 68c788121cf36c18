"""The real stores over a Redis in memory, which runs their scripts; a test can take it away."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from fakeredis import FakeAsyncRedis, FakeServer, FakeStrictRedis
from fakeredis.commands_mixins import server_mixin

from justitia_ray.predictor.versions import VersionIndex, decode_index
from justitia_ray.store.key_store import KeyStore
from justitia_ray.store.leader import LeaderRecord
from justitia_ray.store.prediction_store import PredictionStore
from justitia_ray.store.scheduler_store import SchedulerStore

Json = dict[str, Any]

_NAME = "app/m"
AWAY = "Redis at redis://memory:6379: FakeRedis is emulating a connection error."
"""Trouble of a store whose server cannot be reached."""

# Redis's clock stands at zero, so that epochs count from 1.
patch.object(server_mixin, "time", SimpleNamespace(time=lambda: 0.0)).start()


class _OverFakeRedis:
    """A store over a Redis of its own, which holds one model; those of a test share the store."""

    _of = _NAME
    """Name that the store is for."""

    def __init__(self, **options: Any) -> None:
        self.server = FakeServer()
        self.raw = FakeStrictRedis(server=self.server, decode_responses=True)
        client = FakeAsyncRedis(server=self.server)
        with patch("justitia_ray.store.connection.Redis.from_url", lambda *_, **__: client):
            super().__init__("redis://memory", self._of, **options)  # type: ignore[call-arg]

    @property
    def away(self) -> bool:
        """Whether Redis cannot be reached: every call of a client fails."""
        return not self.server.connected

    @away.setter
    def away(self, away: bool) -> None:
        self.server.connected = not away

    @contextmanager
    def back(self) -> Iterator[None]:
        """Have the server back for as long as a test looks into it."""
        connected, self.server.connected = self.server.connected, True
        yield
        self.server.connected = connected


class FakeSchedulerStore(_OverFakeRedis, SchedulerStore):
    """A scheduler's store."""

    def __init__(self, leader: LeaderRecord | None = None) -> None:
        super().__init__(leader=leader)
        self.saves = 0
        """Saves that were written."""

    async def save(self, *arguments: Any) -> bool:
        """Write what changed, and count it."""
        kept = await super().save(*arguments)
        self.saves += kept
        return kept

    @property
    def epoch(self) -> int:
        """The stored epoch, 0 for none; set by a test, another scheduler's."""
        return int(self.raw.get(self._keys.epoch) or 0)

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.raw.set(self._keys.epoch, epoch)

    def stored_applications(self) -> dict[str, Json]:
        """Return the stored applications, also while the server is away."""
        with self.back():
            stored: dict[str, str] = self.raw.hgetall(self._keys.applications)  # type: ignore[assignment]
        return {name: json.loads(record) for name, record in stored.items()}

    def stored_settings(self) -> Json | None:
        """Return the stored settings, None for none; also while the server is away."""
        with self.back():
            stored = self.raw.get(self._keys.settings)
        return None if stored is None else dict(json.loads(str(stored)))

    def put_leader(self, epoch: int, leader: LeaderRecord) -> None:
        """Let another scheduler be the leader at a later epoch."""
        self.epoch = epoch
        self.raw.set(self._keys.leader, json.dumps(leader.record(epoch)))


class FakePredictionStore(_OverFakeRedis, PredictionStore):
    """A predictor's store."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = FakeStrictRedis(server=self.server)

    @property
    def holder(self) -> str | None:
        """Replica that learns, None for none; set by a test."""
        found = self.raw.get(self._keys.prediction_learner)
        return None if found is None else str(found)

    @holder.setter
    def holder(self, holder: str | None) -> None:
        if holder is None:
            self.raw.delete(self._keys.prediction_learner)
        else:
            self.raw.set(self._keys.prediction_learner, holder)

    def observed(self) -> list[str]:
        """Return the observations that wait to be learned, as JSON."""
        applied: Any = self.raw.get(self._keys.prediction_applied) or "0-0"
        key = self._keys.prediction_observed
        entries: Any = self.raw.xrange(key, min=f"({applied}")
        return [fields["o"] for _, fields in entries]

    def put_observed(self, observations: list[str]) -> None:
        """Let observations wait, whatever they are."""
        pipeline = self.raw.pipeline()
        for observation in observations:
            pipeline.xadd(self._keys.prediction_observed, {"o": observation})
        pipeline.execute()

    def samples(self, application_class: str) -> list[str]:
        """Return the history of a class, as JSON."""
        found: Any = self.raw.lrange(self._keys.samples(application_class), 0, -1)
        return list(found)

    def put_damage(self, application_class: str) -> None:
        """Damage the statistics, the progress and the second sample of a class."""
        raw, keys = self.raw, self._keys
        raw.hset(keys.prediction_classes, application_class, '{"samples": "x"}')
        raw.hset(keys.prediction_learning, application_class, "{}")
        raw.lset(keys.samples(application_class), 1, "{}")

    def index(self, application_class: str) -> VersionIndex:
        """Return the index of a class's models."""
        raw: Any = self._bytes.hget(self._keys.prediction_models, application_class)
        return decode_index(raw)

    def model(self, application_class: str, version: int) -> bytes:
        """Return the bytes of a model."""
        found: Any = self._bytes.get(self._keys.model(application_class, version))
        return bytes(found)

    def put_model(self, application_class: str, version: int, data: bytes | None) -> None:
        """Put other bytes in the place of a model, or remove it."""
        key = self._keys.model(application_class, version)
        if data is None:
            self._bytes.delete(key)
        else:
            self._bytes.set(key, data)


class FakeKeyStore(_OverFakeRedis, KeyStore):
    """A store of an application's API keys."""

    _of = "app"
