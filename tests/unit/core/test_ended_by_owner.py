"""Applications that their owners have ended: stored for a limited time and in limited number."""

from justitia_ray.core.actions import Refusal
from justitia_ray.core.ended_by_owner import EndedByOwner

_CANCELLED = Refusal.APPLICATION_CANCELLED
_CLOSED = Refusal.APPLICATION_CLOSED


def test_id_of_an_ended_application_is_refused_with_the_reason_of_its_end() -> None:
    ended = EndedByOwner(600.0)
    ended.note("a", _CLOSED, 0.0)
    ended.note("a", _CANCELLED, 100.0)

    assert [_CANCELLED, _CANCELLED, None] == [ended.refusal("a", at) for at in (100, 699, 700)]
    assert ended.refusal("b", 100.0) is None


def test_reopened_application_id_is_not_refused() -> None:
    ended = EndedByOwner(600.0)
    ended.note("a", _CANCELLED, 0.0)
    ended.reopen("a")
    ended.reopen("b")

    assert ended.refusal("a", 1.0) is None


def test_oldest_ids_of_ended_applications_are_dropped_beyond_the_limit() -> None:
    ended = EndedByOwner(600.0, most=2)
    for at, name in enumerate("abac"):
        ended.note(name, _CLOSED, float(at))

    assert [("a", "application_closed", 1.0), ("c", "application_closed", 0.0)] == ended.recent(3.0)
    assert ended.refusal("b", 3.0) is None
    assert [] == ended.recent(700.0)


def test_late_report_does_not_prolong_the_record_of_an_ended_application() -> None:
    """Ingresses report to a new scheduler in any order."""
    ended = EndedByOwner(600.0)
    ended.note("late", _CLOSED, 100.0)
    ended.note("early", _CLOSED, -550.0)

    assert (_CLOSED, None) == (ended.refusal("late", 100.0), ended.refusal("early", 100.0))
