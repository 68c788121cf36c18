"""Learning in predictor replicas with a shared store: one learner, saved state, failures."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from justitia_ray.core.stages import StageServed
from justitia_ray.errors import AdmissionError, RequestError
from justitia_ray.observability.part_metrics import PredictorMetrics
from justitia_ray.predictor.class_life import RETRY_S
from justitia_ray.predictor.model_directory import ModelDirectory
from justitia_ray.predictor.model_file import model_from_bytes
from justitia_ray.predictor.observation import Observation
from justitia_ray.predictor.online import EndedTraining, LearningSettings
from justitia_ray.predictor.training import TrainingJob
from justitia_ray.predictor.versions import VersionIndex
from justitia_ray.serve.predictor import learner as learner_module
from justitia_ray.serve.predictor.learner import Learner
from justitia_ray.serve.predictor.training import Trainer, TrainingFailed
from justitia_ray.store.prediction_store import StoredPredictions
from tests.eventually import eventually
from tests.fake_redis import FakePredictionStore
from tests.unit.observability.recording_backend import new_measures
from tests.unit.predictor.builders import (
    bytes_of_removed_kind,
    features_for,
    power_model_bytes,
    sample_of,
)
from tests.unit.serve.scheduler.services import ManualClock

LONGEST_WAIT_S = 5.0


class StandInTrainer:
    """Fake trainer that answers each job with the next planned model, or fails."""

    def __init__(self, *models: bytes) -> None:
        self.models = list(models)
        self.jobs: list[TrainingJob] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def train(self, job: TrainingJob) -> bytes:
        self.jobs.append(job)
        await self.gate.wait()
        if not self.models:
            raise TrainingFailed("the process ended with -9: killed")
        return self.models.pop(0)


def learner_of(
    store: FakePredictionStore,
    trainer: StandInTrainer | None = None,
    *,
    clock: ManualClock | None = None,
    store_inputs: bool = False,
    models_dir: Path | None = None,
) -> Learner:
    """Return the training part (learner) of one predictor replica."""
    return Learner(
        LearningSettings(history_per_class=100),
        store,
        cast(Trainer, trainer or StandInTrainer()),
        PredictorMetrics(new_measures("predictor")),
        store_inputs=store_inputs,
        models_dir=models_dir,
        clock=clock or ManualClock(),
        calendar=lambda: 1_000.0,
    )


def observations(count: int, factor: float = 1.0) -> list[Observation]:
    """Return finished applications that cost factor · (1 + chars)."""
    found = []
    for i in range(count):
        chars = 20 + 7 * (i % 13)
        found.append(Observation("EV", sample_of(chars, factor * (1.0 + chars))))
    return found


async def tick(*learners: Learner) -> None:
    """Run one training step of each learner, and wait until it has ended."""
    for learner in learners:
        await learner.tick()
        training = learner._training.running
        if training is not None and not training.done():
            await asyncio.wait_for(training, LONGEST_WAIT_S)
            await learner.tick()


async def trained_learner(store: FakePredictionStore, *models: bytes) -> Learner:
    learner = learner_of(store, StandInTrainer(*(models or (power_model_bytes(),))))
    await learner.observe_many(observations(10))
    await tick(learner)
    assert 1 == learner.predictor.serving("EV")
    return learner


async def store_with_two_versions() -> tuple[FakePredictionStore, Learner]:
    """Return a store and a learner with two models of a class, the second of which is active."""
    store = FakePredictionStore()
    learner = await trained_learner(store, power_model_bytes(factor=1.2), power_model_bytes())
    await learner.observe_many(observations(10))
    await tick(learner)
    assert 2 == learner.predictor.serving("EV")
    return store, learner


def estimate_and_source(learner: Learner, chars: int = 99) -> tuple[float, str]:
    found = learner.predictor.estimate("EV", 5, 16, features_for(chars))
    return found.kv_token_time, found.source


async def test_predictor_learns_and_stores_observations() -> None:
    store = FakePredictionStore()
    learner = learner_of(store)
    stages = (StageServed(1, 1, 5, 6, 70),)
    await learner.observe_many([replace(o, stages=stages) for o in observations(5)])
    await tick(learner)
    await learner._store.release(learner._name)

    successor = learner_of(store)
    await tick(successor)
    assert learner.predictor.means.all_statistics() == successor.predictor.means.all_statistics()
    assert learner.predictor.progress("EV") == successor.predictor.progress("EV")
    assert learner.predictor.stages.to_dict() == successor.predictor.stages.to_dict()
    assert (5, []) == (len(store.samples("EV")), store.observed())


async def test_all_predictor_replicas_use_the_model_that_one_replica_trained() -> None:
    """An observation counts once, whichever replica received it."""
    store = FakePredictionStore()
    first = learner_of(store, StandInTrainer(power_model_bytes()))
    second = learner_of(store)
    await first.observe_many(observations(5))
    await second.observe_many(observations(5))
    await tick(first, second)
    await tick(second)

    assert [True, False] == [first.learns, second.learns]
    assert 10 == second.predictor.means.statistics("EV")["samples"]
    assert [1, 1] == [learner.predictor.serving("EV") for learner in (first, second)]
    assert estimate_and_source(first) == estimate_and_source(second)
    assert "model" == estimate_and_source(second)[1]


async def test_another_replica_takes_over_from_a_lost_learner() -> None:
    """The second learner trains on the samples that the first one stored."""
    store = FakePredictionStore()
    await trained_learner(store)
    store.holder = None  # the learner's lease expires
    successor = learner_of(store, trainer := StandInTrainer(power_model_bytes(factor=1.5)))
    await tick(successor)
    await successor.observe_many(observations(10))
    await tick(successor)

    assert (1, 16) == (len(trainer.jobs), len(trainer.jobs[0].samples))
    assert 1 == successor.predictor.serving("EV")  # the new model was worse


async def test_learner_without_the_lock_writes_nothing() -> None:
    """A learner that was suspended could overwrite the work of its successor."""
    store = FakePredictionStore()
    learner = learner_of(store)
    await tick(learner)
    store.holder = "another"
    before = await store.revision()
    await learner.observe_many(observations(3))
    await tick(learner)

    revision, waiting = await store.revision(), store.observed()
    assert (False, before, 3) == (learner.learns, revision, len(waiting))


async def test_learner_that_loses_the_lock_during_a_save_reloads_its_state() -> None:
    """Unsaved observations must not be counted twice after the reload."""
    store = FakePredictionStore()
    learner = learner_of(store)
    await tick(learner)
    await learner.observe_many(observations(3))
    hold, store.hold = store.hold, _keep_lock  # type: ignore[method-assign]
    store.holder = "another"
    await tick(learner)
    assert not learner.learns
    store.hold = hold  # type: ignore[method-assign]
    store.holder = None
    await tick(learner)

    assert 3 == learner.predictor.means.statistics("EV")["samples"]


async def _keep_lock(learner: str, for_s: float) -> bool:
    return True


async def test_no_observation_is_lost_or_doubled_during_a_store_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """During the outage, estimates continue and observations wait."""
    caplog.set_level(logging.INFO)
    store = FakePredictionStore()
    learner = await trained_learner(store)
    store.away = True
    await learner.observe_many(observations(4))
    await tick(learner, learner)
    assert "model" == estimate_and_source(learner)[1]
    store.away = False
    await tick(learner)

    assert 14 == learner.predictor.means.statistics("EV")["samples"]
    assert 14 == len(store.samples("EV"))
    messages = [record.getMessage().split()[0] for record in caplog.records]
    assert 1 == messages.count("predictor.store_fails")
    assert 1 == messages.count("predictor.store_works")


async def test_predictor_starts_without_its_store() -> None:
    store = FakePredictionStore()
    await trained_learner(store)
    store.away = True
    late = learner_of(store)
    await tick(late)
    assert "prior" == estimate_and_source(late)[1]
    store.away = False
    await tick(late)

    assert "model" == estimate_and_source(late)[1]


async def test_training_is_logged_without_texts(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the result of the training, but inputs are private."""
    caplog.set_level(logging.INFO)
    await trained_learner(FakePredictionStore())

    (line,) = (m for m in caplog.messages if m.startswith("predictor.trained"))
    for part in ('"application_class": "EV"', '"version": 1', '"took_over": true', '"samples"'):
        assert part in line
    assert "word" not in "".join(caplog.messages)


async def test_crashed_training_is_logged_once_and_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    learner = learner_of(FakePredictionStore(), trainer := StandInTrainer(b"no model"), clock=clock)
    await learner.observe_many(observations(10))
    await tick(learner, learner)
    assert ("class", 1) == (estimate_and_source(learner)[1], len(trainer.jobs))
    clock.at += RETRY_S
    await tick(learner)  # Now the training fails differently.
    clock.at += 2 * RETRY_S
    trainer.models.append(power_model_bytes())
    await tick(learner)

    failures = [m for m in caplog.messages if m.startswith("predictor.training_failed")]
    assert ["new model of class EV", "killed"] == [
        text for text in ("new model of class EV", "killed") if any(text in m for m in failures)
    ]
    assert 2 == len(failures)
    assert "model" == estimate_and_source(learner)[1]


async def test_estimates_continue_while_a_training_runs() -> None:
    learner = learner_of(FakePredictionStore(), trainer := StandInTrainer(power_model_bytes()))
    trainer.gate.clear()
    await learner.observe_many(observations(10))
    await learner.observe_many([replace(o, application_class="DM") for o in observations(10)])
    await learner.tick()
    await learner.tick()
    await asyncio.sleep(0)

    assert (1, "class") == (len(trainer.jobs), estimate_and_source(learner)[1])
    trainer.gate.set()
    await tick(learner)
    assert "DM" == trainer.jobs[0].application_class


async def test_previous_model_serves_if_the_new_model_is_damaged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, learner = await store_with_two_versions()
    whole = store.model("EV", 2)
    store.put_model("EV", 2, whole[:-1] + bytes([whole[-1] ^ 1]))
    other = learner_of(store)
    await tick(other)
    await learner.observe_many(observations(1))
    await tick(learner, other)

    assert 1 == other.predictor.serving("EV")
    assert pytest.approx(120.0) == estimate_and_source(other)[0]
    refused = [m for m in caplog.messages if m.startswith("predictor.model_refused")]
    assert 1 == len(refused)
    assert '"version": 2' in refused[0]
    assert 2 == other.predictor.overview()["EV"]["active"]


async def test_model_of_an_unreachable_store_does_not_count_as_damaged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis failed after the index of models was read.

    The class mean must not serve until the next change.
    """
    store = FakePredictionStore()
    await trained_learner(store)
    other, load_model = learner_of(store), store.load_model

    async def lose_store(application_class: str, version: int) -> bytes | None:
        store.away = True
        return await load_model(application_class, version)

    with monkeypatch.context() as patch:
        patch.setattr(store, "load_model", lose_store)
        await tick(other)
    store.away = False
    await tick(other)

    assert (1, "model") == (other.predictor.serving("EV"), estimate_and_source(other)[1])
    assert not [m for m in caplog.messages if m.startswith("predictor.model_refused")]


async def test_model_published_while_the_store_is_read_keeps_serving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise this replica alone would return to the previous model."""
    store = FakePredictionStore()
    learner = await trained_learner(store)
    data = power_model_bytes(factor=3.0)
    index, model = store.index("EV").published(data, {}), model_from_bytes(data, "a model")
    ended = EndedTraining(cast(Any, None), store.index("EV"), index, model, {})
    load, publishing = store.load, []

    async def publish_version() -> None:
        await learner._versions.publish("EV", ended, data)
        learner.predictor.serve("EV", index, model, 2)

    async def load_slowly() -> StoredPredictions:
        found = await load()
        publishing.append(asyncio.create_task(publish_version()))
        for _ in range(200):  # Wait for many more loop turns than a save takes.
            await asyncio.sleep(0)
        return found

    monkeypatch.setattr(store, "load", load_slowly)
    learner._revision = -1
    await learner._load_changes()
    await asyncio.gather(*publishing)

    assert 2 == learner.predictor.serving("EV")
    assert pytest.approx(300.0) == estimate_and_source(learner)[0]


async def test_class_mean_is_the_estimate_without_a_good_model() -> None:
    store = FakePredictionStore()
    await trained_learner(store)
    store.put_model("EV", 1, None)
    other = learner_of(store)
    await tick(other)

    assert (0, "class") == (other.predictor.serving("EV"), estimate_and_source(other)[1])


async def test_rollback_of_a_model_reaches_every_predictor_replica_and_persists() -> None:
    """Any replica accepts the command, and no later training undoes it."""
    store, learner = await store_with_two_versions()
    other = learner_of(store)
    await tick(other)

    answer = await other.roll_back("EV", None)
    await tick(learner)
    assert (1, True) == (answer["active"], answer["pinned"])
    assert [1, 1] == [each.predictor.serving("EV") for each in (learner, other)]
    await learner.observe_many(observations(50))
    await tick(learner)
    assert (1, 1) == (learner.predictor.serving("EV"), store.index("EV").active)

    cast(Any, learner._training._trainer).models.append(power_model_bytes())
    await other.roll_back("EV", None, release=True)
    await tick(learner)
    assert (3, False) == (store.index("EV").active, store.index("EV").pinned)


async def test_model_rollback_during_a_training_discards_the_trained_model() -> None:
    """The model in training must not take over after the operator's rollback."""
    store = FakePredictionStore()
    learner = await trained_learner(store, power_model_bytes(factor=1.2), power_model_bytes())
    trainer = cast(StandInTrainer, learner._training._trainer)
    trainer.gate.clear()
    await learner.observe_many(observations(10))
    await learner.tick()
    await learner.roll_back("EV", 0)
    trainer.gate.set()
    await tick(learner)

    assert (0, True) == (store.index("EV").active, store.index("EV").pinned)
    assert "class" == estimate_and_source(learner)[1]


async def test_error_for_an_impossible_model_rollback_gives_the_reason() -> None:
    learner = await trained_learner(FakePredictionStore())

    for name, version, complaint in (
        ("DM", None, "class 'DM' has no model"),
        ("EV", 9, "version is 9"),
        ("EV", None, "no earlier version"),
    ):
        with pytest.raises(RequestError, match=complaint):
            await learner.roll_back(name, version)


async def test_rollback_to_a_damaged_model_version_is_refused() -> None:
    """Otherwise the operator would get another model than requested."""
    store, learner = await store_with_two_versions()
    store.put_model("EV", 1, b"x")

    with pytest.raises(RequestError, match="version 1 of class EV is damaged"):
        await learner.roll_back("EV", 1)
    assert 2 == store.index("EV").active


async def test_model_of_a_class_with_changed_costs_is_withdrawn_from_every_replica() -> None:
    store = FakePredictionStore()
    learner = await trained_learner(store)
    await learner.observe_many(observations(40))
    await tick(learner)
    other = learner_of(store)
    await learner.observe_many(observations(12, factor=30.0))
    await tick(learner, other)

    assert 0 == store.index("EV").active
    assert ["class", "class"] == [estimate_and_source(each)[1] for each in (learner, other)]
    assert 1 == learner.predictor.overview()["EV"]["changes"]


async def test_prompt_texts_are_stored_only_if_configured() -> None:
    sample = replace(sample_of(9), input_text="a secret")
    for store_inputs, expected in ((False, False), (True, True)):
        store = FakePredictionStore()
        learner = learner_of(store, store_inputs=store_inputs)
        await learner.observe_many([Observation("EV", sample)])
        await learner.take_history([Observation("EV", sample)])
        waiting = str(store.observed())
        await tick(learner)
        assert expected == ("a secret" in waiting + str(store.samples("EV")))


async def test_imported_history_is_refused_while_many_observations_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(learner_module, "MOST_WAITING", 100)
    store = FakePredictionStore()
    learner = learner_of(store)
    await learner.take_history(observations(20))
    await tick(learner)
    assert 20 == learner.predictor.means.statistics("EV")["samples"]

    store.put_observed(["{}"] * 51)
    with pytest.raises(AdmissionError, match="still learning"):
        await learner.take_history(observations(1))


async def test_malformed_observation_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    """A replica of another version may have sent the observation."""
    store = FakePredictionStore()
    learner = learner_of(store)
    store.put_observed(['{"application_class": "EV"}', "{}"])
    await learner.observe_many(observations(2))
    await tick(learner)

    assert 2 == learner.predictor.means.statistics("EV")["samples"]
    assert ["predictor.observations_refused"] == [m.split()[0] for m in caplog.messages]


async def test_unreadable_predictor_state_is_skipped_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One damaged value costs the history of one class, not the whole predictor."""
    store = FakePredictionStore()
    learner = learner_of(store)
    await learner.observe_many(observations(3))
    await learner.observe_many([replace(o, application_class="DM") for o in observations(3)])
    await tick(learner)
    store.holder = None
    store.put_damage("EV")
    successor = learner_of(store)
    await tick(successor)

    assert ["DM"] == list(successor.predictor.means.all_statistics())
    (line,) = caplog.messages
    for part in ("statistics of class 'EV'", "progress of class EV", "history of class EV: 1"):
        assert part in line


async def test_models_of_a_directory_are_imported_once(tmp_path: Path) -> None:
    """A restart or another replica must not undo the trainings since the import."""
    directory = ModelDirectory(tmp_path)
    directory.publish("EV", power_model_bytes(factor=3.0), {"kind": "mlp"})
    store = FakePredictionStore()
    learner = learner_of(store, StandInTrainer(power_model_bytes()), models_dir=tmp_path)
    await tick(learner)
    assert pytest.approx(300.0) == estimate_and_source(learner)[0]
    assert "models_dir" == learner.predictor.overview()["EV"]["versions"][0]["reason"]
    await learner.observe_many(observations(10))
    await tick(learner)
    store.holder = None
    successor = learner_of(store, models_dir=tmp_path)
    await tick(successor)
    assert 2 == successor.predictor.serving("EV")

    directory.publish("EV", power_model_bytes(factor=5.0), {})
    store.holder = None
    successor = learner_of(store, models_dir=tmp_path)
    await tick(successor)
    assert pytest.approx(500.0) == estimate_and_source(successor)[0]


@pytest.mark.parametrize(
    ("is_damaged", "told"),
    [(True, "version 2 of class EV is damaged"), (False, "version 2 of class EV: not a model")],
)
async def test_previous_model_replaces_an_unreadable_model_of_the_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_damaged: bool, told: str
) -> None:
    """The second model is damaged, or of a kind that was removed."""
    directory = ModelDirectory(tmp_path)
    directory.publish("EV", power_model_bytes(factor=3.0), {})
    directory.publish("EV", bytes_of_removed_kind(), {})
    if is_damaged:
        (tmp_path / "EV" / "000002.model").write_bytes(b"")
    learner = learner_of(store := FakePredictionStore(), models_dir=tmp_path)
    await tick(learner)

    assert pytest.approx(300.0) == estimate_and_source(learner)[0]
    assert 1 == len(store.index("EV").versions)
    assert any(told in m for m in caplog.messages)


async def test_class_with_a_model_of_a_removed_kind_is_trained_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After an upgrade, the class mean serves until the next training has ended."""
    store = FakePredictionStore()
    old = bytes_of_removed_kind()
    learner = await trained_learner(store)
    index = VersionIndex().published(old, {"kind": "blend"})
    assert await store.save_index("EV", learner.predictor.index("EV"), index, old) is not None
    store.holder = None
    successor = learner_of(store, trainer := StandInTrainer(power_model_bytes()))
    trainer.gate.clear()
    await successor.tick()

    assert "class" == estimate_and_source(successor)[1]
    (line,) = (m for m in caplog.messages if m.startswith("predictor.model_refused"))
    assert "kinds auto, ridge, forest and median were removed" in line
    trainer.gate.set()
    await tick(successor)
    assert ["first"] == [job.reason for job in trainer.jobs]
    assert (2, "model") == (successor.predictor.serving("EV"), estimate_and_source(successor)[1])


async def test_learner_runs_in_the_background_and_releases_its_lock() -> None:
    """Another replica need not wait until the lock expires."""
    store = FakePredictionStore()
    learner = learner_of(store)
    await learner.start()
    await learner.observe_many(observations(2))
    await eventually(lambda: not store.observed(), "it has learned", LONGEST_WAIT_S)
    await learner.stop()

    assert store.holder is None
    assert 2 == learner.predictor.means.statistics("EV")["samples"]


async def test_learner_ends_although_its_cancellation_is_swallowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python 3.11's `wait_for` may swallow a cancellation, and the task would never end."""
    asked, store = asyncio.Event(), FakePredictionStore()
    learner = learner_of(store)
    await learner.start()

    async def swallow_cancellation() -> int:
        asked.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return 0

    monkeypatch.setattr(store, "revision", swallow_cancellation)
    await learner.observe_many([])  # new observations exist
    await asyncio.wait_for(asked.wait(), LONGEST_WAIT_S)

    await asyncio.wait_for(learner.stop(), LONGEST_WAIT_S)
