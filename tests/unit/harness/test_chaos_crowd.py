"""The crowd of a chaos run: an answer beyond its quota is found, and usage nobody has had."""

import pytest

from tests.harness.chaos.crowd import LIMIT, CrowdRecord

_AT = [float(k) for k in range(LIMIT)]


def _usage(applications: int, inferences: int) -> list[dict[str, int]]:
    return [{"applications": applications, "inferences": inferences}]


@pytest.mark.parametrize(
    ("answered_at", "usage", "flaws"),
    [
        (_AT, _usage(LIMIT, LIMIT), 0),
        (_AT, _usage(LIMIT, LIMIT - 3), 0),  # those at 9, 10 and 11 s: nobody was left to tell
        (_AT, _usage(LIMIT, LIMIT - 4), 1),
        (_AT, _usage(LIMIT + 1, LIMIT), 1),
        ([*_AT, 30.0], _usage(LIMIT + 1, LIMIT + 1), 1),
        ([], [], 0),
        (_AT[:3], _usage(3, 3), 0),
        (_AT[:3], _usage(4, 3), 1),  # counted twice
    ],
)
def test_quota_and_usage_are_held_against_answers(
    answered_at: list[float], usage: list[dict[str, int]], flaws: int
) -> None:
    """One answer too many is a flaw, and so is one that is missing with no death to excuse it."""
    found = CrowdRecord(answered_at).flaws(usage, [10.0], 1.0)

    assert flaws == len(found)


def test_unanswered_call_may_be_counted() -> None:
    """Its ingress died, or the answer was lost: whether it ran is not known."""
    record = CrowdRecord(_AT[:3], unreached=1)

    assert [] == record.flaws(_usage(4, 4), [], 1.0)
    assert 2 == len(record.flaws(_usage(5, 5), [], 1.0))


def test_answered_call_that_is_missing_is_found() -> None:
    """A scheduler that dies alone loses nothing."""
    assert 1 == len(CrowdRecord(_AT).flaws(_usage(LIMIT, LIMIT - 1), [], 1.0))
