"""The history of a class: bounded, and without what was before a change."""

from dataclasses import replace

from justitia_ray.predictor.history import KEPT_BEFORE_CHANGE, ClassHistory
from justitia_ray.predictor.sample import Sample
from tests.unit.predictor.small_models import sample_of


def history_of(costs: range, bound: int = 100) -> ClassHistory:
    """Return a history of samples with these costs; even ones have no features."""
    history = ClassHistory(bound)
    for cost in costs:
        sample = sample_of(1, float(cost))
        history.add(sample if cost % 2 else replace(sample, features=None))
    return history


def costs(samples: tuple[Sample, ...]) -> list[float]:
    """Return the costs of samples."""
    return [sample.kv_token_time for sample in samples]


def test_only_samples_with_features_are_usable() -> None:
    """A model cannot learn from an input that was not seen."""
    history = history_of(range(1, 6))

    assert [1.0, 3.0, 5.0] == costs(history.usable())
    assert 3 == history.usable_count


def test_history_is_bounded() -> None:
    """The oldest go, and are no longer counted."""
    history = history_of(range(1, 8), bound=4)

    assert ([5.0, 7.0], 2, 4) == (costs(history.usable()), history.usable_count, history.valid)


def test_change_leaves_out_what_was_before() -> None:
    """But for a few: where it began is not known to the sample."""
    history = history_of(range(1, 21))
    history.note_change(since=4)

    assert 4 + KEPT_BEFORE_CHANGE == history.valid
    assert [15.0, 17.0, 19.0] == costs(history.usable())
    assert [17.0, 18.0, 19.0, 20.0] == costs(history.latest(4))


def test_what_comes_after_a_change_counts() -> None:
    """The count follows every sample, in and out."""
    history = history_of(range(1, 21), bound=10)
    history.note_change(since=1)
    for cost in range(21, 41):
        history.add(sample_of(1, float(cost)))
        assert len(history.usable()) == history.usable_count

    assert 10 == history.usable_count


def test_restored_history_goes_on() -> None:
    """With as many in use as before, if there are so many."""
    history = ClassHistory(5)
    history.restore([sample_of(1, float(cost)) for cost in range(1, 9)], valid=3)

    assert [6.0, 7.0, 8.0] == costs(history.usable())
    history.restore([sample_of(1, 1.0)], valid=3)
    assert (1, 1) == (history.valid, history.usable_count)
