"""The ingress's side of prediction: features go out, tables come back, ends are told."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayError

from justitia_ray.config import PredictionSection
from justitia_ray.core.actions import EndApplication
from justitia_ray.core.entities import Outcome
from justitia_ray.core.stages import StageServed
from justitia_ray.predictor.input_features import features_of
from justitia_ray.predictor.observation import Observation
from justitia_ray.predictor.online import LearningPredictor
from justitia_ray.serve import estimates as estimates_module
from justitia_ray.serve.estimates import Estimates
from tests.eventually import eventually
from tests.unit.predictor.small_models import sample_of

STAGES = (StageServed(2, 2, 20, 30, 400),)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell at once what has finished."""
    monkeypatch.setattr(estimates_module, "_TEACH_S", 0.001)


class StandInPredictor:
    """A handle of a predictor that knows one class, and notes what it is told."""

    def __init__(self) -> None:
        self.learning = LearningPredictor()
        self.learning.observe("EV", sample_of(9, 400.0), STAGES)
        self.asked: list[tuple[Any, ...]] = []
        self.told: list[Observation] = []
        self.tried = 0
        self.delay_s = 0.0
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any] = getattr(type(self), f"call_{name}")
        return SimpleNamespace(remote=lambda *arguments: method(self, *arguments))

    async def call_estimate(self, *arguments: Any) -> dict[str, Any]:
        self.asked.append(arguments)
        await asyncio.sleep(self.delay_s)
        if self.error is not None:
            raise self.error
        name, features, input_tokens, max_tokens = arguments
        return self.learning.estimate(name, input_tokens, max_tokens, features).to_dict()

    async def call_observe_many(self, observations: list[Observation]) -> None:
        self.tried += 1
        if self.error is not None:
            raise self.error
        self.told += observations

    async def call_table(self) -> dict[str, Any]:
        return {"classes": self.learning.table(), "stages": self.learning.stages.to_dict()}


def estimates_of(predictor: StandInPredictor, **settings: Any) -> Estimates:
    """Return an ingress's estimates."""
    return Estimates(predictor, PredictionSection(**({"deadline_s": 5.0} | settings)))


def ended(application_id: str = "a", **changes: Any) -> EndApplication:
    """Return the end of an application of class EV."""
    fields: dict[str, Any] = {
        "application_id": application_id,
        "application_class": "EV",
        "tenant": "t",
        "ingress_id": "i",
        "outcome": Outcome.FINISHED,
        "predicted_kv_token_time": 1.0,
        "kv_token_time": 400.0,
        "virtual_finish_time": 1.0,
        "arrived_at": 0.0,
        "first_dispatched_at": 0.0,
        "ended_at": 1.0,
        "inferences": 2,
        "failed": 0,
        "output_tokens": 30,
        "settlements": 0,
        "stages": STAGES,
    }
    return EndApplication(**(fields | changes))


async def test_predictor_sees_features_and_no_text() -> None:
    """The text goes no further than the process that first had it."""
    estimates = estimates_of(predictor := StandInPredictor())
    seen = await estimates.look_at("some words")
    estimate = await estimates.ask("EV", 3, 8, seen)

    assert [("EV", features_of("some words"), 3, 8)] == predictor.asked
    assert ("class", 400.0) == (estimate.source, estimate.kv_token_time)


@pytest.mark.parametrize("failure", ["late", "gone"])
async def test_without_an_answer_the_copied_table_is_taken(failure: str) -> None:
    """An application is not held up for its estimate."""
    predictor = StandInPredictor()
    estimates = estimates_of(predictor, deadline_s=0.01)
    estimates.start()
    await eventually(
        lambda: estimates.from_table("EV", 3, 8).source == "class", "the table is there"
    )
    if failure == "late":
        predictor.delay_s = 60.0
    else:
        predictor.error = RayError("gone")
    estimate = await estimates.ask("EV", 3, 8, await estimates.look_at("x"))
    await estimates.stop()

    assert ("class", 400.0) == (estimate.source, estimate.kv_token_time)


async def test_stages_are_copied_with_the_table() -> None:
    """Lengths of inferences are asked for at each of them: that must cost no call."""
    estimates = estimates_of(predictor := StandInPredictor())
    assert estimates.expect("EV", 0, 10, 8) is None
    estimates.start()
    await eventually(lambda: estimates.expect("EV", 0, 10, 8), "the stages are there")
    await estimates.stop()

    expected = predictor.learning.stages.expect("EV", 0, 10, 8, 2)
    assert expected == estimates.expect("EV", 0, 10, 8, 2)


async def test_end_is_told_with_the_input_that_was_seen() -> None:
    """And with the stages; what was not seen is told without."""
    estimates = estimates_of(predictor := StandInPredictor())
    estimates.remember("a", await estimates.look_at("some words"))
    estimates.start()
    estimates.application_ended(ended("a"))
    estimates.application_ended(ended("b"))
    await eventually(lambda: len(predictor.told) == 2, "both were told")
    await estimates.stop()

    first, second = predictor.told
    assert ("EV", STAGES, features_of("some words"), None) == (
        first.application_class,
        first.stages,
        first.sample.features,
        first.sample.input_text,
    )
    assert (400.0, 2, 30, None) == (
        second.sample.kv_token_time,
        second.sample.inferences,
        second.sample.output_tokens,
        second.sample.features,
    )


async def test_text_is_told_only_if_it_is_to_be_stored() -> None:
    """`store_inputs` is off unless somebody turns it on."""
    estimates = estimates_of(predictor := StandInPredictor(), store_inputs=True)
    estimates.remember("a", await estimates.look_at("some words"))
    estimates.start()
    estimates.application_ended(ended("a"))
    await eventually(lambda: predictor.told, "it was told")
    await estimates.stop()

    assert "some words" == predictor.told[0].sample.input_text


@pytest.mark.parametrize(
    "changes", [{"outcome": Outcome.CANCELLED}, {"failed": 1}, {"kv_token_time": 0.0}]
)
async def test_what_was_cut_short_teaches_nothing(changes: dict[str, Any]) -> None:
    """Its cost is not that of its class; what was kept of its input goes all the same."""
    estimates = estimates_of(StandInPredictor())
    estimates.remember("a", await estimates.look_at("some words"))
    estimates.application_ended(ended("a", **changes))

    assert [] == estimates._finished
    assert estimates._inputs.take("a") is None


async def test_what_finishes_while_the_predictor_is_away_is_told_later() -> None:
    """Its statistics are those of everything that ran."""
    estimates = estimates_of(predictor := StandInPredictor())
    predictor.error = RayError("gone")
    estimates.start()
    estimates.application_ended(ended("a"))
    await eventually(lambda: predictor.tried > 1, "it was tried again")
    predictor.error = None
    await eventually(lambda: len(predictor.told) == 1, "it was told")
    await estimates.stop()
