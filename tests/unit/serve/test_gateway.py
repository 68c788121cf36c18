"""What the gateway tells the scheduler of an inference: its stage, its length, what is to come."""

import json
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from justitia_ray.config import AppConfig
from justitia_ray.core.events import ApplicationArrived, InferenceSubmitted
from justitia_ray.core.stages import StageServed
from justitia_ray.errors import EngineError, TooManyApplications
from justitia_ray.observability.ingress_metrics import IngressMetrics
from justitia_ray.predictor.class_mean import ClassMeanPredictor
from justitia_ray.predictor.estimate import Estimate
from justitia_ray.predictor.stages import CHARGE_FACTOR, Expectation, StageTable
from justitia_ray.serve.gateway import Gateway
from justitia_ray.serve.opening import Opening
from justitia_ray.serve.outstanding import Outstanding, Ticket
from justitia_ray.serve.token_counter import PromptSize
from tests.unit.observability.taken import exported, measures

_PATH = "/v1/completions"
_MODEL = "tiny"


@dataclass
class FakeDispatcher:
    """Keeps what is submitted; grants nothing."""

    ingress_id: str = "i"
    epoch: int = 1
    outstanding: Outstanding = field(default_factory=Outstanding)
    items: list[InferenceSubmitted] = field(default_factory=list)

    def opened_here(self, application_id: str) -> ApplicationArrived | None:
        return self.outstanding.open.get(application_id)

    def next_stage(self, application_id: str) -> tuple[int, int]:
        return self.outstanding.next_stage(application_id)

    async def open_application(self, arrival: ApplicationArrived) -> float:
        self.outstanding.open[arrival.application_id] = arrival
        return 1.0

    def submit(
        self, item: InferenceSubmitted, opening: ApplicationArrived | None, *, is_last: bool
    ) -> Ticket:
        if opening is not None:
            self.outstanding.open[opening.application_id] = opening
        self.items.append(item)
        self.outstanding.submitted(item)
        return Ticket(item, 0.0, opening, is_last)

    async def next_grant(self, ticket: Ticket) -> Any:
        raise EngineError("no replica here")

    def cancel(self, ticket: Ticket) -> None:
        pass


class FakeEstimates:
    """Answers from tables that the test fills."""

    def __init__(self) -> None:
        self.table = ClassMeanPredictor()
        self.stages = StageTable()
        self.remembered: dict[str, object] = {}

    def from_table(self, name: str, tokens: int, most: int | None) -> Estimate:
        return self.table.estimate(name, tokens, most)

    def expect(
        self, name: str, stage: int, prompt: int, most: int | None, inferences: int = 1
    ) -> Expectation | None:
        return self.stages.expect(name, stage, prompt, most, inferences)

    async def look_at(self, text: str) -> object:
        return f"seen: {text}"

    async def ask(self, name: str, tokens: int, most: int | None, seen: object) -> Estimate:
        return self.table.estimate(name, tokens, most)

    def remember(self, application_id: str, seen: object) -> None:
        self.remembered[application_id] = seen


class FakeCounter:
    """Every prompt has ten tokens."""

    async def size(self, body: Any) -> PromptSize:
        return PromptSize(1, 10, 10)

    async def text_tokens(self, text: str) -> int:
        return 10


def _config() -> AppConfig:
    return AppConfig.model_validate({"model": {"name": _MODEL, "path": "nowhere"}})


class Desk:
    """A gateway and what it was made of."""

    def __init__(self) -> None:
        self.dispatcher, self.estimates = FakeDispatcher(), FakeEstimates()
        parts = (self.dispatcher, None, self.estimates, FakeCounter())
        self.measures = measures("ingress")
        self.metrics = IngressMetrics(self.measures)
        self.gateway = Gateway(
            _config(), *cast("tuple[Any, Any, Any, Any]", parts), metrics=self.metrics
        )

    async def submit(self, headers: dict[str, str], **fields: Any) -> InferenceSubmitted:
        """Let one inference be submitted, and return what the scheduler is told."""
        body = {"model": _MODEL, "prompt": "text", "max_tokens": 1000, **fields}
        parsed = self.gateway.parse(_PATH, json.dumps(body).encode())
        with pytest.raises(EngineError, match="no replica here"):
            await self.gateway.unary(_PATH, headers, parsed)
        return self.dispatcher.items[-1]

    def predictions(self) -> dict[str, float]:
        """Return how many applications were opened, by what their estimate rests on."""
        told = exported(self.measures).counts
        return {key[1]: n for key, n in told.items() if key[0] == "predictions_total" and n}


@pytest.fixture
def desk() -> Desk:
    """Return a gateway."""
    return Desk()


_IN_A = {"x-justitia-application": "a", "x-justitia-class": "EV"}


async def test_inference_of_an_open_application_is_of_its_class(desk: Desk) -> None:
    """Who opened it said the class; inferences name the application only."""
    desk.estimates.stages.observe("EV", [StageServed(1, 1, 10, 40, 1000)])
    await desk.gateway.open_application(Opening("EV", "input", application_id="a"))
    item = await desk.submit({"x-justitia-application": "a"})

    assert 40 == item.predicted_output_tokens


async def test_each_stage_has_its_length_and_what_is_to_come(desk: Desk) -> None:
    """The second is submitted after an answer, so it is told what applications need from there."""
    desk.estimates.stages.observe(
        "EV", [StageServed(1, 1, 10, 4, 50), StageServed(1, 1, 10, 40, 1_000_000)]
    )
    first = await desk.submit(_IN_A)
    sibling = await desk.submit(_IN_A)
    desk.dispatcher.outstanding.answered(Ticket(first, 0.0))
    second = await desk.submit(_IN_A)

    assert [0, 0, 1] == [item.stage for item in (first, sibling, second)]
    assert first.predicted_output_tokens < second.predicted_output_tokens
    assert CHARGE_FACTOR * 1_000_000 == second.remaining_kv_token_time


async def test_unknown_class_needs_what_it_has_submitted(desk: Desk) -> None:
    """Two, at 256 tokens each as usual; room is kept for all of max_tokens."""
    await desk.submit(_IN_A)
    item = await desk.submit(_IN_A)

    assert CHARGE_FACTOR * 2 * (10 * 256 + 256 * 257 // 2) == item.remaining_kv_token_time
    assert 1000 == item.predicted_output_tokens


async def test_more_is_charged_than_is_predicted(desk: Desk) -> None:
    """And the prediction is told as it is: it is what is compared with the truth in the end."""
    arrival, _ = await desk.gateway.open_application(Opening("EV", "input"))

    # One inference of ten tokens and the prior's 256.
    assert 10 * 256 + 256 * 257 // 2 == arrival.predicted_kv_token_time
    assert CHARGE_FACTOR * arrival.predicted_kv_token_time == arrival.charge_kv_token_time


async def test_every_choice_counts(desk: Desk) -> None:
    """Three sequences of 10 + 256 tokens; predicted and prompt tokens are over all of them."""
    item = await desk.submit(_IN_A, n=3)

    assert (3, 30, 3000) == (item.choices, item.prompt_tokens, item.predicted_output_tokens)
    assert CHARGE_FACTOR * 3 * (10 * 256 + 256 * 257 // 2) == item.remaining_kv_token_time


async def test_forced_length_is_no_guess(desk: Desk) -> None:
    """A replay says how long each answer is to be; the stage's mean has nothing to add."""
    desk.estimates.stages.observe("EV", [StageServed(1, 1, 10, 4, 50)])
    item = await desk.submit(_IN_A, max_tokens=100, ignore_eos=True)

    assert 100 == item.predicted_output_tokens
    assert CHARGE_FACTOR * (10 * 100 + 5050) == item.remaining_kv_token_time


async def test_input_is_remembered_until_its_application_ends(desk: Desk) -> None:
    """Opened by a call or by its first inference; a second inference is not its input."""
    await desk.gateway.open_application(Opening("EV", "input", application_id="b"))
    await desk.submit(_IN_A)
    await desk.submit({**_IN_A, "x-justitia-application": "b"})

    assert {"b": "seen: input", "a": "seen: text"} == desk.estimates.remembered


async def test_estimate_is_counted_where_its_application_is_opened(desk: Desk) -> None:
    """Once: neither for its inferences nor when it is opened again, with another estimate."""
    desk.estimates.table.observe("EV", 1_000, 1, 10)
    for name in ("EV", "unknown"):
        await desk.gateway.open_application(Opening(name, "input", application_id="a"))
    await desk.submit(_IN_A)

    assert {"class": 1} == desk.predictions()


async def test_opening_that_is_refused_is_no_estimate_of_an_application(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller comes again, and is estimated anew."""

    async def refuse(arrival: ApplicationArrived) -> float:
        raise TooManyApplications("no room", 5.0)

    monkeypatch.setattr(desk.dispatcher, "open_application", refuse)
    with pytest.raises(TooManyApplications):
        await desk.gateway.open_application(Opening("EV", "input", application_id="a"))
    desk.metrics.opened("a")

    assert {} == desk.predictions()


async def test_estimate_of_an_application_that_an_inference_opens_is_counted_at_its_lease(
    desk: Desk,
) -> None:
    """Two first inferences at once have an estimate each; until then it may be refused."""
    await desk.submit(_IN_A)
    desk.dispatcher.outstanding.open.clear()
    await desk.submit(_IN_A)
    before = desk.predictions()
    for _ in range(2):
        desk.metrics.opened("a")

    assert ({}, {"prior": 1}) == (before, desk.predictions())


def test_position_is_forgotten_with_its_application() -> None:
    """An id that comes again is another application, and memory is bounded by what is open."""
    outstanding = Outstanding()
    arrival = ApplicationArrived("a", "EV", "t", 1.0, 1.0, "i")
    outstanding.open["a"] = arrival
    item = InferenceSubmitted("q", "a", "0", "i", 1, 1, 1, stage=0)
    outstanding.submitted(item)
    outstanding.answered(Ticket(item, 0.0))

    assert (1, 1) == outstanding.next_stage("a")

    outstanding.forget("a")
    outstanding.answered(Ticket(item, 0.0))
    outstanding.submitted(item)

    assert (0, 1) == outstanding.next_stage("a")
