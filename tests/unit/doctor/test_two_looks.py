"""A live system is never seen at one instant: only what stays is said."""

import pytest

from justitia_ray.doctor.rules import find

from .healthy import Patient, seen_after


def lost_lease(patient: Patient) -> None:
    """Replica r1 does not hold lease 3-1."""
    patient.seen["replicas"]["r1"]["held"] = {}


def silent_replica(patient: Patient) -> None:
    """Replica r2 does not call."""
    patient.scheduler["replicas"]["r2"]["silent_s"] = 3.0


def test_what_is_gone_in_the_second_look_is_not_said() -> None:
    """A lease whose end is on its way is in one look only."""
    assert [] == find(seen_after(lost_lease), seen_after())
    assert [] == find(seen_after(), seen_after(lost_lease))


def test_the_same_rule_on_another_thing_is_another_matter() -> None:
    """Under load some lease is always on its way; it is never the same."""

    def other_lease(patient: Patient) -> None:
        patient.seen["replicas"]["r2"]["held"] = {}

    assert [] == find(seen_after(lost_lease), seen_after(other_lease))


def test_worst_comes_first() -> None:
    """An operator reads from the top."""

    def orphan(patient: Patient) -> None:
        patient.scheduler["applications"]["resting"]["ingress_id"] = "ingress-0"

    def late_save(patient: Patient) -> None:
        patient.scheduler["store"]["saved_s_ago"] = 9.0

    harms = (orphan, late_save, silent_replica)
    found = find(seen_after(*harms), seen_after(*harms))

    assert ["wrong", "risk", "note"] == [f.severity for f in found]


def moved_tag(finish: float, stored: float) -> "Patient":
    """Return a service whose application `busy` has that tag, and that one in Redis."""
    patient = Patient()
    patient.scheduler["applications"]["busy"]["finish"] = finish
    patient.redis["applications"]["busy"]["finish"] = stored
    return patient


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((1_500.0, 1_400.0), (1_500.0, 1_500.0), id="saved meanwhile"),
        pytest.param((1_500.0, 1_400.0), (1_600.0, 1_500.0), id="moved again, saved once"),
        pytest.param((1_500.0, 1_400.0), (1_500.0, 1_600.0), id="moved after the second look"),
    ],
)
def test_tag_that_is_yet_to_be_saved_does_not_differ(
    before: tuple[float, float], after: tuple[float, float]
) -> None:
    """Saves lag by half a second: a tag that moves is never the same in both places."""
    assert [] == find(moved_tag(*before).look(), moved_tag(*after).look())


def test_two_schedulers_are_not_compared() -> None:
    """One that took office between the looks has counted anew: nothing of before is its doing."""

    def new_office(patient: Patient) -> None:
        patient.scheduler["epoch"] = patient.redis["epoch"] = patient.seen["ingress"]["epoch"] = 4
        for replica in patient.seen["replicas"].values():
            replica["epoch"] = 4

    tampered = moved_tag(1_500.0, 1_400.0)
    before = tampered.look()
    new_office(tampered)

    assert [] == find(before, tampered.look())
