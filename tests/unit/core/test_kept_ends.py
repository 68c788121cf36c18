"""Records of ended inferences, kept until a save contains them and ingresses have read that."""

import json

import pytest

from justitia_ray.core import kept_ends
from justitia_ray.core.actions import EndsStored
from justitia_ray.core.kept_ends import KeptEnds


def _store_ends(ends: KeptEnds) -> list[EndsStored]:
    ends.take_changed()
    return ends.take_stored()


def test_ended_inferences_are_confirmed_to_their_ingresses_after_a_save() -> None:
    """An inference that ends during a save is confirmed by the next save."""
    ends = KeptEnds()
    ends.add_inference("a", "q0", "i0")
    ends.add_inference("a", "q1", "i1")
    ends.add_application("a", ["i0"])
    changed = ends.take_changed()
    ends.add_inference("a", "q2", "i0")

    assert ["a"] == changed
    told = ends.take_stored()
    assert [EndsStored("i0", ("q0",), ("a",)), EndsStored("i1", ("q1",))] == told
    assert [] == ends.take_stored()
    assert [EndsStored("i0", ("q2",))] == _store_ends(ends)


def test_ended_inferences_of_a_failed_save_are_saved_again() -> None:
    ends = KeptEnds()
    ends.add_inference("a", "q0", "i0")
    ends.take_changed()
    ends.add_inference("a", "q1", "i0")

    assert [EndsStored("i0", ("q0", "q1"))] == _store_ends(ends)


def test_ended_inference_is_stored_until_its_ingress_has_read_the_confirmation() -> None:
    """Without the confirmation, the ingress reports the inference to the next scheduler."""
    ends = KeptEnds()
    ends.add_inference("a", "q0", "i0")
    ends.add_application("a", ["i0", "i1"])
    told = _store_ends(ends)

    assert ends.is_counted("a", "q0")
    ends.acknowledge(told[0])
    assert not ends.is_counted("a", "q0")
    assert {"inferences": {}, "openers": ["i1"], "unfinished": 0} == ends.record("a")
    ends.acknowledge(told[1])
    assert (None, 0) == (ends.record("a"), len(ends))
    assert ["a"] == ends.take_changed()


def test_new_scheduler_restores_and_confirms_counted_inferences() -> None:
    """The old scheduler may have died before it informed the ingresses."""
    ends, successor = KeptEnds(), KeptEnds()
    ends.add_inference("a", "q0", "i0")
    ends.add_application("a", ["i1"], 12.5)
    ingresses = successor.restore("a", json.loads(json.dumps(ends.record("a"))))

    assert {"i0", "i1"} == ingresses
    assert successor.is_counted("a", "q0")
    assert successor.ended_under_predecessor("a")
    assert [EndsStored("i0", ("q0",)), EndsStored("i1", (), ("a",))] == _store_ends(successor)
    assert (["i1"], 12.5) == successor.reopen("a")
    assert not successor.ended_under_predecessor("a")


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ({"inferences": {}, "openers": []}, "unfinished"),
        ({"inferences": {"q": 1}, "openers": [], "unfinished": 0}, "inferences"),
        ({"inferences": {}, "openers": {}, "unfinished": 0}, "openers"),
        ([], "an object"),
    ],
)
def test_error_of_a_damaged_ended_inference_names_the_record(record: object, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        KeptEnds().restore("a", record)


def test_ended_inferences_of_a_lost_ingress_are_forgotten() -> None:
    """A lost ingress reports no more ended inferences."""
    ends = KeptEnds()
    ends.add_inference("a", "q0", "i0")
    ends.add_inference("a", "q1", "i1")
    ends.forget_ingress("i0")

    assert [False, True] == [ends.is_counted("a", name) for name in ("q0", "q1")]


def test_oldest_unconfirmed_ended_inferences_are_dropped_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the store is away for hours, the records must not fill the memory."""
    monkeypatch.setattr(kept_ends, "_MOST", 2)
    ends = KeptEnds()
    for name in ("q0", "q1", "q2"):
        ends.add_inference("a", name, "i0")

    assert [False, True, True] == [ends.is_counted("a", name) for name in ("q0", "q1", "q2")]
