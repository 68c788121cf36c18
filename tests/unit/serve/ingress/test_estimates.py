"""What an ingress keeps of inputs: features, bounded, for as long as the application is open."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from ray.exceptions import RayError

from justitia_ray.config import PredictionSection
from justitia_ray.core.actions import EndApplication
from justitia_ray.core.entities import Outcome
from justitia_ray.core.stages import StageServed
from justitia_ray.predictor.input_features import features_of
from justitia_ray.predictor.observation import Observation, Sample
from justitia_ray.predictor.online import LearningPredictor
from justitia_ray.serve.ingress import estimates as estimates_module
from justitia_ray.serve.ingress.estimates import Estimates, FeatureCache
from tests.eventually import eventually
from tests.unit.observability.recording_backend import ENDED
from tests.unit.predictor.builders import sample_of
from tests.unit.serve.actor_handle import ActorHandle


async def test_long_text_has_the_same_features() -> None:
    """They are made in a thread, so that other callers go on."""
    text = "many words " * 10_000

    assert features_of(text) == (await FeatureCache(store_inputs=False).summarise(text)).features


async def test_oldest_inputs_make_room() -> None:
    """Applications that are never closed must not fill the memory; one that is ends once."""
    inputs = FeatureCache(store_inputs=True, max_weight=500)
    seen = await inputs.summarise("x" * 30)
    for number in (*range(20), 19):  # the last one again: counts once
        inputs.keep_input(f"app-{number}", seen)

    taken = [inputs.take_input(f"app-{number}") for number in (*range(20), 19)]
    assert [None] * 15 + [seen] * 5 + [None] == taken  # 64 + 2 + 30 each


STAGES = (StageServed(2, 2, 20, 30, 400),)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell at once what has finished."""
    monkeypatch.setattr(estimates_module, "_TEACH_S", 0.001)


class StandInPredictor(ActorHandle):
    """A handle of a predictor that knows one class, and notes what it is told."""

    def __init__(self) -> None:
        self.learning = LearningPredictor()
        self.learning.observe_application("EV", sample_of(9, 400.0), STAGES)
        self.asked: list[tuple[Any, ...]] = []
        self.told: list[Observation] = []
        self.tried = 0
        self.delay_s = 0.0
        self.error: Exception | None = None

    async def _estimate(self, *arguments: Any) -> dict[str, Any]:
        self.asked.append(arguments)
        await asyncio.sleep(self.delay_s)
        if self.error is not None:
            raise self.error
        name, features, input_tokens, max_tokens = arguments
        return self.learning.estimate(name, input_tokens, max_tokens, features).to_dict()

    async def _observe_many(self, observations: list[Observation]) -> None:
        self.tried += 1
        if self.error is not None:
            raise self.error
        self.told += observations

    async def _table(self) -> dict[str, Any]:
        return {
            "classes": self.learning.means.all_statistics(),
            "stages": self.learning.stages.to_dict(),
        }


def estimates_of(predictor: StandInPredictor, **settings: Any) -> Estimates:
    """Return an ingress's estimates."""
    return Estimates(predictor, PredictionSection(**({"deadline_s": 5.0} | settings)))


def ended(application_id: str = "a", **changes: Any) -> EndApplication:
    """Return the end of an application of class EV."""
    fields: dict[str, Any] = {"application_class": "EV", "kv_token_time": 400.0, "inferences": 2}
    fields |= {"output_tokens": 30, "stages": STAGES, **changes}
    return replace(ENDED, application_id=application_id, **fields)


async def test_predictor_sees_features_and_no_text() -> None:
    """The text goes no further than the process that first had it."""
    estimates = estimates_of(predictor := StandInPredictor())
    seen = await estimates.inputs.summarise("some words")
    estimate = await estimates.estimate_application("EV", 3, 8, seen)

    assert [("EV", features_of("some words"), 3, 8)] == predictor.asked
    assert ("class", 400.0) == (estimate.source, estimate.kv_token_time)


@pytest.mark.parametrize("failure", ["late", "gone"])
async def test_without_an_answer_the_copied_table_is_taken(failure: str) -> None:
    """An application is not held up for its estimate."""
    predictor = StandInPredictor()
    estimates = estimates_of(predictor, deadline_s=0.01)
    estimates.start()
    await eventually(
        lambda: estimates.classes.estimate("EV", 3, 8).source == "class", "the table is there"
    )
    if failure == "late":
        predictor.delay_s = 60.0
    else:
        predictor.error = RayError("gone")
    seen = await estimates.inputs.summarise("x")
    estimate = await estimates.estimate_application("EV", 3, 8, seen)
    await estimates.stop()

    assert ("class", 400.0) == (estimate.source, estimate.kv_token_time)


async def test_stages_are_copied_with_the_table() -> None:
    """Lengths of inferences are asked for at each of them: that must cost no call."""
    estimates = estimates_of(predictor := StandInPredictor())
    assert estimates.stages.expect("EV", 0, 10, 8) is None
    estimates.start()
    await eventually(lambda: estimates.stages.expect("EV", 0, 10, 8), "the stages are there")
    await estimates.stop()

    expected = predictor.learning.stages.expect("EV", 0, 10, 8, 2)
    assert expected == estimates.stages.expect("EV", 0, 10, 8, 2)


@pytest.mark.parametrize(("stored", "text"), [(False, None), (True, "some words")])
async def test_end_is_told_with_the_input_that_was_seen(stored: bool, text: str | None) -> None:
    """And with the stages; with the text only if it is to be stored."""
    estimates = estimates_of(predictor := StandInPredictor(), store_inputs=stored)
    estimates.inputs.keep_input("a", await estimates.inputs.summarise("some words"))
    estimates.start()
    estimates.note_ended_application(ended("a"))
    estimates.note_ended_application(ended("b"))
    await eventually(lambda: len(predictor.told) == 2, "both were told")
    await estimates.stop()

    seen = Sample(400.0, 2, 30, features_of("some words"), text)
    unseen = Sample(400.0, 2, 30, None)
    assert [Observation("EV", sample, STAGES) for sample in (seen, unseen)] == predictor.told


@pytest.mark.parametrize(
    "changes", [{"outcome": Outcome.CANCELLED}, {"failed": 1}, {"kv_token_time": 0.0}]
)
async def test_what_was_cut_short_teaches_nothing(changes: dict[str, Any]) -> None:
    """Its cost is not that of its class; what was kept of its input goes all the same."""
    estimates = estimates_of(StandInPredictor())
    estimates.inputs.keep_input("a", await estimates.inputs.summarise("some words"))
    estimates.note_ended_application(ended("a", **changes))

    assert [] == estimates._finished
    assert estimates.inputs.take_input("a") is None


async def test_what_finishes_while_the_predictor_is_away_is_told_later() -> None:
    """Its statistics are those of everything that ran."""
    estimates = estimates_of(predictor := StandInPredictor())
    predictor.error = RayError("gone")
    estimates.start()
    estimates.note_ended_application(ended("a"))
    await eventually(lambda: predictor.tried > 1, "it was tried again")
    predictor.error = None
    await eventually(lambda: len(predictor.told) == 1, "it was told")
    await estimates.stop()
