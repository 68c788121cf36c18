"""The table of moves of an inference."""

import itertools
import pickle

import pytest

from justitia_ray.core.entities import Inference, InferenceState
from justitia_ray.core.transitions import TRANSITIONS, InvalidTransition, move

_PAIRS = list(itertools.product(InferenceState, InferenceState))


def _inference(state: InferenceState) -> Inference:
    return Inference("r7", "a", "0", "i0", 1, 1, 1, 1, 0.0, 1, state=state)


@pytest.mark.parametrize(("start", "finish"), list(TRANSITIONS))
def test_moves_of_the_table_are_made(start: InferenceState, finish: InferenceState) -> None:
    """Every row is a move that the core makes somewhere."""
    inference = _inference(start)
    move(inference, finish)

    assert finish is inference.state


@pytest.mark.parametrize(("start", "finish"), [pair for pair in _PAIRS if pair not in TRANSITIONS])
def test_other_moves_are_refused(start: InferenceState, finish: InferenceState) -> None:
    """A second end, or a grant of what runs, is a bug that must not pass unseen."""
    inference = _inference(start)
    with pytest.raises(InvalidTransition) as caught:
        move(inference, finish)

    assert ("r7", start, finish) == (
        caught.value.request_id,
        caught.value.start,
        caught.value.finish,
    )
    assert f"inference r7 cannot go from {start} to {finish}" == str(caught.value)
    assert start is inference.state


def test_nothing_leaves_the_end() -> None:
    """The first final report of an inference wins."""
    assert not [pair for pair in TRANSITIONS if pair[0] is InferenceState.ENDED]


def test_invalid_transition_survives_pickling() -> None:
    """It may cross from the actor to whoever called it."""
    error = InvalidTransition("r7", InferenceState.ENDED, InferenceState.WAITING)
    again = pickle.loads(pickle.dumps(error))

    assert (error.args, str(error)) == (again.args, str(again))
