"""Observations: the ended applications from which the predictor learns."""

from dataclasses import replace

import pytest

from justitia_ray.core.entities import Outcome
from justitia_ray.predictor.observation import is_lesson
from tests.unit.observability.recording_backend import ENDED


@pytest.mark.parametrize(
    ("outcome", "recognized_by", "lesson"),
    [
        (Outcome.FINISHED, "", True),
        (Outcome.FINISHED, "codex", True),
        (Outcome.EXPIRED, "codex", True),
        (Outcome.EXPIRED, "conversation", True),
        (Outcome.EXPIRED, "header", False),
        (Outcome.EXPIRED, "", False),
        (Outcome.CANCELLED, "codex", False),
    ],
)
def test_application_without_a_close_is_observed_at_its_idle_limit(
    outcome: Outcome, recognized_by: str, lesson: bool
) -> None:
    """A class whose applications are never closed would otherwise have no observations.

    Where applications are normally closed, one that falls idle may have died.
    """
    ended = replace(ENDED, outcome=outcome, recognized_by=recognized_by)

    assert lesson == is_lesson(ended)
    assert not is_lesson(replace(ended, failed=1))
    assert not is_lesson(replace(ended, kv_token_time=0))
