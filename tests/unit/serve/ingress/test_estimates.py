"""Input features that an ingress stores for open applications, within a memory bound."""

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


async def test_text_read_in_pieces_has_equal_prediction_features() -> None:
    """Features of a long text are computed in a thread, so that other callers continue."""
    text = "many words " * 10_000

    assert features_of(text) == (await FeatureCache(store_inputs=False).summarise(text)).features


async def test_oldest_stored_inputs_are_dropped_beyond_the_limit() -> None:
    """Applications that are never closed must not fill the memory."""
    inputs = FeatureCache(store_inputs=True, max_weight=500)
    seen = await inputs.summarise("x" * 30)
    for number in (*range(20), 19):  # The last input is added again and counts once.
        inputs.keep_input(f"app-{number}", seen)

    taken = [inputs.take_input(f"app-{number}") for number in (*range(20), 19)]
    assert [None] * 15 + [seen] * 5 + [None] == taken  # 64 + 2 + 30 bytes each


STAGES = (StageServed(2, 2, 20, 30, 400),)


@pytest.fixture(autouse=True)
def _report_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates_module, "_TEACH_S", 0.001)


class StandInPredictor(ActorHandle):
    """Fake predictor with one class; it records its calls."""

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
    return Estimates(predictor, PredictionSection(**({"deadline_s": 5.0} | settings)))


def end_of(application_id: str = "a", **changes: Any) -> EndApplication:
    fields: dict[str, Any] = {"application_class": "EV", "kv_token_time": 400.0, "inferences": 2}
    fields |= {"output_tokens": 30, "stages": STAGES, **changes}
    return replace(ENDED, application_id=application_id, **fields)


async def test_predictor_receives_features_instead_of_text() -> None:
    """The text of an input must not leave the ingress process."""
    estimates = estimates_of(predictor := StandInPredictor())
    seen = await estimates.inputs.summarise("some words")
    estimate = await estimates.estimate_application("EV", 3, 8, seen)

    assert [("EV", features_of("some words"), 3, 8)] == predictor.asked
    assert ("class", 400.0) == (estimate.source, estimate.kv_token_time)


@pytest.mark.parametrize("failure", ["late", "gone"])
async def test_estimates_from_the_copied_class_table_need_no_predictor_call(failure: str) -> None:
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


async def test_class_table_that_ingresses_copy_includes_stage_estimates() -> None:
    """A call to the predictor for every inference's length would be too expensive."""
    estimates = estimates_of(predictor := StandInPredictor())
    assert estimates.stages.expect("EV", 0, 10, 8) is None
    estimates.start()
    await eventually(lambda: estimates.stages.expect("EV", 0, 10, 8), "the stages are there")
    await estimates.stop()

    expected = predictor.learning.stages.expect("EV", 0, 10, 8, 2)
    assert expected == estimates.stages.expect("EV", 0, 10, 8, 2)


@pytest.mark.parametrize(("stored", "text"), [(False, None), (True, "some words")])
async def test_report_of_an_ended_application_includes_its_input_features(
    stored: bool, text: str | None
) -> None:
    estimates = estimates_of(predictor := StandInPredictor(), store_inputs=stored)
    estimates.inputs.keep_input("a", await estimates.inputs.summarise("some words"))
    estimates.start()
    estimates.note_ended_application(end_of("a"))
    estimates.note_ended_application(end_of("b"))
    await eventually(lambda: len(predictor.told) == 2, "both were told")
    await estimates.stop()

    seen = Sample(400.0, 2, 30, features_of("some words"), text)
    unseen = Sample(400.0, 2, 30, None)
    assert [Observation("EV", sample, STAGES) for sample in (seen, unseen)] == predictor.told


@pytest.mark.parametrize(
    "changes", [{"outcome": Outcome.CANCELLED}, {"failed": 1}, {"kv_token_time": 0.0}]
)
async def test_truncated_application_is_not_reported_to_the_predictor(
    changes: dict[str, Any],
) -> None:
    """The cost of a truncated application is not typical of its class.

    Its stored input is removed all the same.
    """
    estimates = estimates_of(StandInPredictor())
    estimates.inputs.keep_input("a", await estimates.inputs.summarise("some words"))
    estimates.note_ended_application(end_of("a", **changes))

    assert [] == estimates._finished
    assert estimates.inputs.take_input("a") is None


async def test_applications_that_end_during_a_predictor_outage_are_reported_later() -> None:
    """The predictor's statistics must cover every application that ran."""
    estimates = estimates_of(predictor := StandInPredictor())
    predictor.error = RayError("gone")
    estimates.start()
    estimates.note_ended_application(end_of("a"))
    await eventually(lambda: predictor.tried > 1, "it was tried again")
    predictor.error = None
    await eventually(lambda: len(predictor.told) == 1, "it was told")
    await estimates.stop()
