"""The states of an inference, as a table; every move of one goes through here."""

from justitia_ray.core.entities import Inference, InferenceState

_W, _L, _R, _E = (
    InferenceState.WAITING,
    InferenceState.LEASED,
    InferenceState.RUNNING,
    InferenceState.ENDED,
)

TRANSITIONS: dict[tuple[InferenceState, InferenceState], str] = {
    (_W, _L): "granted to a replica",
    (_L, _R): "its payload reached the replica",
    (_L, _W): "lease expired or refused, or its replica is gone",
    (_R, _W): "its replica or engine died",
    (_W, _E): "cancelled or expired while waiting",
    (_L, _E): "cancelled before its payload came, or too short to be seen running",
    (_R, _E): "finished, failed or cancelled",
}


class InvalidTransition(Exception):
    """A move that the table does not allow: a bug, never an answer to a caller.

    Attributes:
        request_id: The inference.
        start: Its state.
        finish: The state it was to take.
    """

    def __init__(self, request_id: str, start: InferenceState, finish: InferenceState) -> None:
        super().__init__(request_id, start, finish)
        self.request_id = request_id
        self.start = start
        self.finish = finish

    def __str__(self) -> str:
        return f"inference {self.request_id} cannot go from {self.start} to {self.finish}"


def move(inference: Inference, finish: InferenceState) -> None:
    """Take the inference to another state.

    Raises:
        InvalidTransition: If the table has no such move.
    """
    if (inference.state, finish) not in TRANSITIONS:
        raise InvalidTransition(inference.request_id, inference.state, finish)
    inference.state = finish
