"""Statistics of stages: lengths, later stages, the bound on classes, and storage."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.core.stages import MAXIMUM_STAGES, ExpectedStage, StageServed
from justitia_ray.errors import StoreError
from justitia_ray.predictor.stages import Expectation, StageTable, still_needed


def stage_of(
    inferences: int,
    prompt: int,
    output: int,
    cost: float = 100,
    longest: int | None = None,
    gap_s: float | None = None,
) -> StageServed:
    """Return a stage whose inferences have these prompt and output tokens each."""
    tokens = (inferences * prompt, inferences * output)
    return StageServed(inferences, inferences, *tokens, cost, longest, gap_s)


def table_of(*applications: list[StageServed], name: str = "EV") -> StageTable:
    """Return a table that has observed these applications of one class."""
    table = StageTable()
    for stages in applications:
        table.observe_stages(name, stages)
    return table


def expectation_at(table: StageTable, at: int, prompt: int = 10, **more: Any) -> Expectation:
    """Return what a table expects of an EV application at a stage."""
    found = table.expect("EV", at, prompt, more.pop("most", None), **more)
    assert found is not None
    return found


def test_unknown_class_has_no_stage_expectation() -> None:
    table = table_of([stage_of(1, 10, 4)])
    table.observe_stages("DM", ())

    assert (None, None) == (table.expect("FV", 0, 10, None), table.expect("DM", 0, 10, None))


def test_expected_output_length_depends_on_the_stage() -> None:
    """A query takes 20 tokens and a verdict 140, so the class mean is wrong for both."""
    table = table_of(*[[stage_of(1, 300, 20), stage_of(1, 500, 140)]] * 50)

    # The class mean of 80 tokens counts as one more application beside the 50 observed ones.
    assert 22 == expectation_at(table, 0, 300).output_tokens
    assert 139 == expectation_at(table, 1, 500).output_tokens


def test_expected_output_length_depends_on_the_prompt_length() -> None:
    table = table_of(*[[stage_of(1, prompt, prompt // 10)] for prompt in (100, 200, 300) * 20])

    assert 20 == expectation_at(table, 0, 200).output_tokens
    assert 28 <= expectation_at(table, 0, 300).output_tokens <= 30
    assert expectation_at(table, 0, 10_000).output_tokens < 50


def test_expected_output_length_is_between_one_token_and_max_tokens() -> None:
    table = table_of(*[[stage_of(1, prompt, 100 - prompt)] for prompt in (10, 50, 90) * 20])

    assert 15 == expectation_at(table, 0, 10, most=15).output_tokens
    assert 1 == expectation_at(table, 0, 500).output_tokens


def test_expected_later_cost_is_the_mean_of_applications_in_the_stage() -> None:
    table = table_of(
        [stage_of(1, 10, 4, 20)],
        [stage_of(1, 10, 4, 20)],
        [stage_of(1, 10, 4, 20), stage_of(3, 10, 4, 60)],
        [stage_of(1, 10, 4, 20), stage_of(5, 10, 4, 100)],
    )
    second = expectation_at(table, 1, inferences=4)

    assert (4, 80) == (second.inferences_to_come, second.remaining_kv_token_time)
    assert (1 + 1 + 4 + 6) / 4 == expectation_at(table, 0).inferences_to_come


def test_larger_fan_out_raises_the_expected_later_cost() -> None:
    table = table_of(
        *[[stage_of(n, 10, 4, 10 * n), stage_of(n, 10, 4, 20 * n)] for n in (1, 3, 5) * 20]
    )
    few, usual, many = (
        expectation_at(table, 1, inferences=n).remaining_kv_token_time for n in (1, 3, 10)
    )

    assert 60 == pytest.approx(usual)
    assert 20 == pytest.approx(few, abs=5)
    assert 200 == pytest.approx(many, abs=15)


def test_first_stage_changes_the_cost_estimate_only_by_an_unusual_fan_out() -> None:
    """A model knows the input, so the class mean must not replace its estimate."""
    table = table_of(*[[stage_of(n, 10, 4, 30 * n)] for n in (1, 3, 5) * 20])

    assert None is expectation_at(table, 0, inferences=2).remaining_kv_token_time
    assert 120 == pytest.approx(
        expectation_at(table, 0, inferences=4).remaining_kv_token_time, abs=3
    )


def test_stage_beyond_all_known_stages_has_the_output_length_of_its_class() -> None:
    """An agent may loop longer than any agent before."""
    table = table_of([stage_of(1, 10, 4), stage_of(1, 10, 8)])

    assert Expectation(6, 1.0, None) == expectation_at(table, 2)


def test_submitted_inferences_bound_the_expected_cost_from_below() -> None:
    one = Expectation(4, 1.0, None)

    assert 2000 == still_needed(None, 4, 10, 40) == still_needed(one, 4, 10, 40)
    assert 5000 == still_needed(Expectation(4, 1.0, 5000), 4, 10, 40)
    assert 2000 == still_needed(Expectation(4, 1.0, 300), 4, 10, 40)


def test_expected_stage_has_the_mean_sizes_of_observed_stages() -> None:
    table = table_of(
        [stage_of(1, 10, 4, 40, 4, 1.0), stage_of(2, 20, 6, 300, 8, 0.0)],
        [stage_of(1, 10, 4, 50, 4, 2.0), stage_of(4, 20, 6, 500, 10, 0.0)],
        [stage_of(1, 10, 4, 60, 7, 0.0)],
    )
    second = ExpectedStage(3, (64 + 128) / 2, 400, 9, 0)

    assert (ExpectedStage(1, 18, 50, 5, 1.5), second) == table.expected_stages("EV", 0)
    assert (second,) == table.expected_stages("EV", 1)


def test_stage_reached_by_half_of_the_applications_is_expected() -> None:
    turn = stage_of(1, 10, 4)
    table = table_of([turn], [turn] * 2, [turn] * 4)
    lengths = [len(table.expected_stages("EV", reached)) for reached in range(5)]

    assert [2, 3, 2, 1, 0] == lengths


def test_application_of_an_unknown_class_has_no_expected_stages() -> None:
    """The empty list means that the stages are unknown."""
    assert () == table_of([stage_of(1, 10, 4)]).expected_stages("FV", 0)


def test_expected_stages_follow_new_observations() -> None:
    table = table_of([stage_of(1, 10, 4, longest=4)], [stage_of(1, 10, 4, longest=4)])
    before = table.expected_stages("EV", 0)
    table.observe_stages("EV", [stage_of(4, 10, 4, longest=10)])

    assert [(1, 4)] == [(s.inferences, s.output_tokens) for s in before]
    assert [(2, 6)] == [(s.inferences, s.output_tokens) for s in table.expected_stages("EV", 0)]


def test_unknown_longest_sequence_of_a_stage_counts_as_the_mean_length() -> None:
    table = table_of(
        [stage_of(3, 10, 8), stage_of(1, 10, 4)],
        [stage_of(3, 10, 8, longest=12, gap_s=3.0), stage_of(1, 10, 4)],
    )
    first, second = table.expected_stages("EV", 0)

    assert ((8 + 12) / 2, 3.0) == (first.output_tokens, first.gap_s)
    assert (4, 0) == (second.output_tokens, second.gap_s)


def test_stage_with_only_cancelled_calls_has_no_cost() -> None:
    """An application whose calls were cancelled has still reached the stage."""
    went_on = [
        stage_of(1, 10, 4, 40, 4, 1.0),
        stage_of(0, 0, 0, 0, 0, None),
        stage_of(1, 10, 4, 50, 4, 0.0),
    ]
    stages = table_of(went_on).expected_stages("EV", 0)

    assert (ExpectedStage(0, 0, 0, 0, 0), ExpectedStage(1, 18, 50, 4, 0)) == stages[1:]


_STAGES = st.builds(
    stage_of,
    st.integers(0, 9),
    st.integers(0, 3000),
    st.integers(1, 900),
    st.integers(0, 10**6),
    st.none() | st.integers(1, 2000),
    st.none() | st.floats(0, 60),
)


@given(st.lists(st.lists(_STAGES, min_size=1, max_size=4), min_size=1, max_size=8), st.randoms())
def test_stage_table_does_not_depend_on_the_order_of_observations(
    applications: list[Any], rng: Any
) -> None:
    """Several ingress replicas report in any order."""
    shuffled = applications[:]
    rng.shuffle(shuffled)
    table, other = table_of(*applications), table_of(*shuffled)

    for number in range(max(map(len, applications))):
        expected, found = (t.expected_stages("EV", number) for t in (table, other))
        assert len(expected) == len(found)
        for one, same in zip(expected, found, strict=True):
            assert tuple(one) == pytest.approx(tuple(same), abs=1)  # whole tokens, and rounding


@given(st.lists(st.lists(_STAGES, min_size=1, max_size=4), min_size=1, max_size=8))
def test_stage_costs_add_up_to_the_applications_costs(applications: list[Any]) -> None:
    table = table_of(*applications)
    reached = [sum(len(a) > n for a in applications) for n in range(max(map(len, applications)))]
    costs = [table.expected_stages("EV", n)[0].kv_token_time * c for n, c in enumerate(reached)]

    observed = sum(stage.kv_token_time for stages in applications for stage in stages)
    assert observed == pytest.approx(
        sum(costs), abs=sum(reached)
    )  # rounding errs by up to half a token·iteration each


def test_number_of_classes_is_bounded() -> None:
    """Callers choose class names, so the table must be bounded."""
    table = StageTable(max_classes=2)
    names = [table.observe_stages(name, [stage_of(1, 10, 4)]) for name in ("a", "b", "c", "d", "a")]

    assert ["a", "b", "other", "other", "a"] == names
    assert ["a", "b", "other"] == sorted(table.to_dict())
    assert None is not table.expect("never seen", 0, 10, None)


def test_number_of_stages_is_bounded() -> None:
    """An ingress with a higher bound must not make the table grow."""
    table = table_of([stage_of(1, 10, 4)] * (MAXIMUM_STAGES + 3))

    assert MAXIMUM_STAGES == len(table.to_dict()["EV"])


def test_stage_without_inferences_teaches_no_output_length() -> None:
    """If all calls of a stage were cancelled, no output length is known."""
    table = table_of([stage_of(1, 10, 4, 50), stage_of(0, 0, 0, 0)])
    second = expectation_at(table, 1)

    assert (4, 1.0, 0) == (
        second.output_tokens,
        second.inferences_to_come,
        second.remaining_kv_token_time,
    )


def test_stage_table_survives_json() -> None:
    """The predictor stores the table in Redis and sends it to the ingresses."""
    table = table_of(*[[stage_of(n, 7 * n, 4 + n, 10 * n), stage_of(2, 9, n)] for n in (1, 3, 5)])
    restored = StageTable.from_dict(json.loads(json.dumps(table.to_dict())))

    assert table.to_dict() == restored.to_dict()
    assert expectation_at(table, 0, 15, inferences=4) == expectation_at(
        restored, 0, 15, inferences=4
    )
    for each in (table, restored):
        each.observe_stages("EV", [stage_of(2, 30, 3, 10, 4, 2.5), stage_of(2, 30, 3)])
    assert table.to_dict() == restored.to_dict()
    assert table.expected_stages("EV", 0) == restored.expected_stages("EV", 0)


def test_stage_table_of_release_0_2_0_is_read() -> None:
    """Old tables lack gaps and longest sequences."""
    early = table_of(*[[stage_of(2, 10, 6, 40), stage_of(1, 10, 4, 60)]] * 3).to_dict()
    for statistics in early["EV"]:
        for name in ("longest_output_mean", "gaps", "gap_mean_s"):
            del statistics[name]
    table = StageTable.from_dict(early)
    second = ExpectedStage(1, 18, 60, 4, 0)

    assert (ExpectedStage(2, 44, 40, 6, 0), second) == table.expected_stages("EV", 0)

    table.observe_stages("EV", [stage_of(2, 10, 6, 40, 10, 5.0), stage_of(1, 10, 4, 60, 4, 0.0)])

    assert (ExpectedStage(2, 44, 40, 7, 5), second) == table.expected_stages("EV", 0)


_GOOD = table_of([stage_of(1, 10, 4)]).to_dict()["EV"][0]


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "stages of class 'EV': a list of 1 to 64 stages"),
        ({}, "a list of 1 to 64"),
        ([_GOOD] * 65, "a list of 1 to 64"),
        ([_GOOD, 7], "stage 1: must be an object"),
        ([{k: v for k, v in _GOOD.items() if k != "products"}], "unknown: products"),
        ([{**_GOOD, "applications": 0}], "stage 0: applications is 0: .*or equal to 1"),
        ([{**_GOOD, "output_mean": -1.0}], "output_mean is -1.0"),
        ([{**_GOOD, "output_mean": 1e300}], "output_mean is 1e[+]300"),
        ([{**_GOOD, "longest_output_mean": "4"}], "longest_output_mean is '4'"),
        ([{**_GOOD, "gaps": 1.5}], "gaps is 1.5"),
        ([{**_GOOD, "gap_mean_s": -1.0}], "gap_mean_s is -1.0"),
        ([{**_GOOD, "sequences": 0, "prompt_squares": 1.0}], "sequences is 0"),
    ],
)
def test_damaged_stage_table_is_refused(stages: Any, message: str) -> None:
    """The error names class, stage and field."""
    with pytest.raises(StoreError, match=message):
        StageTable.from_dict({"EV": stages})
