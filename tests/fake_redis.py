"""The real stores on an in-memory Redis that runs their scripts and can be disconnected."""

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
"""Error text of a store whose Redis server cannot be reached."""

# Redis's clock stands at zero, so that scheduler epochs count from 1.
patch.object(server_mixin, "time", SimpleNamespace(time=lambda: 0.0)).start()


class _OverFakeRedis:
    """Store of one model over an in-memory Redis, which all stores of a test share."""

    _of = _NAME
    """Name of the model, under which the store keeps its keys."""

    def __init__(self, **options: Any) -> None:
        self.server = FakeServer()
        self.raw = FakeStrictRedis(server=self.server, decode_responses=True)
        client = FakeAsyncRedis(server=self.server)
        with patch("justitia_ray.store.connection.Redis.from_url", lambda *_, **__: client):
            super().__init__("redis://memory", self._of, **options)  # type: ignore[call-arg]

    @property
    def away(self) -> bool:
        """Whether Redis is unreachable, so that every command fails."""
        return not self.server.connected

    @away.setter
    def away(self, away: bool) -> None:
        self.server.connected = not away

    @contextmanager
    def back(self) -> Iterator[None]:
        """Make Redis reachable while a test inspects its data."""
        connected, self.server.connected = self.server.connected, True
        yield
        self.server.connected = connected


class FakeSchedulerStore(_OverFakeRedis, SchedulerStore):
    def __init__(self, leader: LeaderRecord | None = None) -> None:
        super().__init__(leader=leader)
        self.saves = 0
        """Number of times that the scheduler has saved its state."""

    async def save(self, *arguments: Any) -> bool:
        kept = await super().save(*arguments)
        self.saves += kept
        return kept

    @property
    def epoch(self) -> int:
        """Stored epoch (number of the scheduler's term), 0 for none; a test may set it."""
        return int(self.raw.get(self._keys.epoch) or 0)

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.raw.set(self._keys.epoch, epoch)

    def stored_applications(self) -> dict[str, Json]:
        """Return the stored applications, even while Redis is unreachable."""
        with self.back():
            stored: dict[str, str] = self.raw.hgetall(self._keys.applications)  # type: ignore[assignment]
        return {name: json.loads(record) for name, record in stored.items()}

    def stored_settings(self) -> Json | None:
        """Return the stored settings or None, even while Redis is unreachable."""
        with self.back():
            stored = self.raw.get(self._keys.settings)
        return None if stored is None else dict(json.loads(str(stored)))

    def put_leader(self, epoch: int, leader: LeaderRecord) -> None:
        self.epoch = epoch
        self.raw.set(self._keys.leader, json.dumps(leader.record(epoch)))


class FakePredictionStore(_OverFakeRedis, PredictionStore):
    def __init__(self) -> None:
        super().__init__()
        self._bytes = FakeStrictRedis(server=self.server)

    @property
    def holder(self) -> str | None:
        """Replica that holds the predictor's training lock, or None; a test may set it."""
        found = self.raw.get(self._keys.prediction_learner)
        return None if found is None else str(found)

    @holder.setter
    def holder(self, holder: str | None) -> None:
        if holder is None:
            self.raw.delete(self._keys.prediction_learner)
        else:
            self.raw.set(self._keys.prediction_learner, holder)

    def observed(self) -> list[str]:
        """Return the observations that the predictor has not yet learned from, as JSON."""
        applied: Any = self.raw.get(self._keys.prediction_applied) or "0-0"
        key = self._keys.prediction_observed
        entries: Any = self.raw.xrange(key, min=f"({applied}")
        return [fields["o"] for _, fields in entries]

    def put_observed(self, observations: list[str]) -> None:
        pipeline = self.raw.pipeline()
        for observation in observations:
            pipeline.xadd(self._keys.prediction_observed, {"o": observation})
        pipeline.execute()

    def samples(self, application_class: str) -> list[str]:
        found: Any = self.raw.lrange(self._keys.samples(application_class), 0, -1)
        return list(found)

    def put_damage(self, application_class: str) -> None:
        """Corrupt the stored statistics, progress and second sample of an application class."""
        raw, keys = self.raw, self._keys
        raw.hset(keys.prediction_classes, application_class, '{"samples": "x"}')
        raw.hset(keys.prediction_learning, application_class, "{}")
        raw.lset(keys.samples(application_class), 1, "{}")

    def index(self, application_class: str) -> VersionIndex:
        raw: Any = self._bytes.hget(self._keys.prediction_models, application_class)
        return decode_index(raw)

    def model(self, application_class: str, version: int) -> bytes:
        found: Any = self._bytes.get(self._keys.model(application_class, version))
        return bytes(found)

    def put_model(self, application_class: str, version: int, data: bytes | None) -> None:
        key = self._keys.model(application_class, version)
        if data is None:
            self._bytes.delete(key)
        else:
            self._bytes.set(key, data)


class FakeKeyStore(_OverFakeRedis, KeyStore):
    _of = "app"
