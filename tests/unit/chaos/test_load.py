"""The load is a function of its seed, of the size that was asked for, in every phase."""

import pytest

from justitia_ray.chaos.load import CLASSES, draw_load
from justitia_ray.errors import ConfigError
from justitia_ray.protocol.openai_body import CHAT, COMPLETIONS

LOAD = draw_load(1, 200, 1_000, 33)
INFERENCES = [inference for planned in LOAD for inference in planned.inferences]


def test_same_seed_gives_the_same_load() -> None:
    """A run that failed has to be run again as it was."""
    assert LOAD == draw_load(1, 200, 1_000, 33)
    assert LOAD != draw_load(2, 200, 1_000, 33)


def test_load_has_as_much_as_was_asked_for() -> None:
    """Counts of lost inferences mean nothing without it."""
    assert (200, 1_000) == (len(LOAD), len(INFERENCES))
    assert 1_000 == len({inference.name for inference in INFERENCES})
    assert 1_000 == len({inference.prompt for inference in INFERENCES})


def test_every_phase_has_load() -> None:
    """A strike on an idle service proves nothing."""
    assert set(range(33)) == {planned.phase for planned in LOAD}


def test_load_is_of_all_forms() -> None:
    """What breaks one form may not break another."""
    assert set(CLASSES) == {planned.application_class for planned in LOAD}
    assert {True, False} == {planned.over_handle for planned in LOAD}
    assert {CHAT, COMPLETIONS} == {inference.path for inference in INFERENCES}
    assert {(True, 1), (False, 1), (False, 2)} == {(i.stream, i.n) for i in INFERENCES}
    assert 3 == len({planned.tenant for planned in LOAD})
    assert 3 == len({planned.weight for planned in LOAD})


def test_stages_are_what_the_class_says() -> None:
    """A chain has one inference at a time, a fan-out all at once."""
    for planned in LOAD:
        sizes = [len(stage) for stage in planned.stages]
        if planned.application_class == "chain":
            assert set(sizes) == {1}
        if planned.application_class in ("one", "fan-out"):
            assert 1 == len(sizes)
        if planned.application_class == "map-reduce":
            assert [len(planned.inferences) - 1, 1] == sizes


def test_body_names_its_inference_and_call() -> None:
    """The journal of the replicas has no other way to know whose run it is."""
    streamed = next(inference for inference in INFERENCES if inference.stream)
    body = streamed.body(3)

    assert f"{streamed.name}#3" == body["user"]
    assert {"include_usage": True} == body["stream_options"]
    assert 0 == body["temperature"]


def test_load_may_be_of_single_choices() -> None:
    """Greedy decoding of two choices is refused by vLLM."""
    load = draw_load(1, 20, 100, 4, two_choices=0.0)

    assert {1} == {inference.n for planned in load for inference in planned.inferences}


def test_load_that_cannot_be_spread_is_refused() -> None:
    """Better than phases without load."""
    with pytest.raises(ConfigError, match="3 applications of 9 inferences in 4 phases"):
        draw_load(1, 3, 9, 4)
