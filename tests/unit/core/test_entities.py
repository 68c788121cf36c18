"""The transition table of an inference."""

import itertools

import pytest

from justitia_ray.core.entities import (
    TRANSITIONS,
    Inference,
    InferenceState,
    InvalidTransition,
    move,
)

_PAIRS = list(itertools.product(InferenceState, InferenceState))


def _inference(state: InferenceState) -> Inference:
    return Inference("r7", "a", "0", "i0", 1, 1, 1, 1, 0.0, 1, state=state)


@pytest.mark.parametrize(("start", "finish"), list(TRANSITIONS))
def test_moves_of_the_table_are_made(start: InferenceState, finish: InferenceState) -> None:
    """Every row is a transition that the core uses."""
    inference = _inference(start)
    move(inference, finish)

    assert finish is inference.state


@pytest.mark.parametrize(("start", "finish"), [pair for pair in _PAIRS if pair not in TRANSITIONS])
def test_other_moves_are_refused(start: InferenceState, finish: InferenceState) -> None:
    """A second end, or a grant of a running inference, is a bug that must raise."""
    inference = _inference(start)
    with pytest.raises(InvalidTransition, match=f"inference r7 cannot go from {start} to {finish}"):
        move(inference, finish)

    assert start is inference.state


def test_ended_state_is_final() -> None:
    """The first final report of an inference wins."""
    assert not [pair for pair in TRANSITIONS if pair[0] is InferenceState.ENDED]
