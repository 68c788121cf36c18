"""Suites that show one effect: starvation, splitting, prefixes, tool time, a real trace."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.sim.suites import SUITES, SuiteOptions, build_suite
from justitia_ray.sim.workload import WorkloadApplication, checked_application
from tests.unit.sim.data_directory import REAL, needs_real_data, write_text


def suite_of(suite: str, **options: Any) -> list[WorkloadApplication]:
    return build_suite(suite, SuiteOptions(**options))


def test_small_applications_arrive_one_per_second_after_the_large_one() -> None:
    """In the Justitia paper (v1, Sec. V-C) small applications arrive once per second."""
    applications = suite_of("elephant-mice", count=91)

    assert [float(number) for number in range(91)] == [a.arrived_at_s for a in applications]
    assert "MRS" == applications[0].application_class
    mice = Counter(a.application_class for a in applications[1:])
    assert {"KBQAV", "CC", "ALFWI"} == set(mice)
    # 30 of each are expected; three standard deviations are 13.4
    assert all(16 <= number <= 44 for number in mice.values())
    applications = suite_of("elephant-mice", count=5, window_s=2)
    assert [0.0, 0.5, 1.0, 1.5, 2.0] == [a.arrived_at_s for a in applications]
    assert 1 == len(suite_of("elephant-mice", count=1, window_s=2))


def test_two_merges_arrive_together() -> None:
    """Figure 3 of the Justitia paper has two different DM applications at the same time."""
    first, second = suite_of("two-dm")

    assert [("DM", 0.0)] * 2 == [(a.application_class, a.arrived_at_s) for a in (first, second)]
    assert first.inferences != second.inferences


def test_gaming_suite_splits_the_requests_of_its_twin_into_more_applications() -> None:
    """The suites `gaming` and `gaming-unsplit` must differ only by the splitting."""
    split, whole = suite_of("gaming"), suite_of("gaming-unsplit")

    def count_requests(applications: list[WorkloadApplication]) -> Counter[tuple[str, int, int]]:
        return Counter(
            (a.tenant, i.prompt_tokens, i.output_tokens) for a in applications for i in a.inferences
        )

    assert count_requests(whole) == count_requests(split)
    assert {"honest1": 1, "honest2": 1, "splitter": 100} == Counter(a.tenant for a in split)
    assert {"honest1": 1, "honest2": 1, "splitter": 1} == Counter(a.tenant for a in whole)
    assert {0.0} == {a.arrived_at_s for a in split + whole}
    assert {100} == {len(a.inferences) for a in whole}


def test_prefix_loops_mostly_repeat_earlier_prompts() -> None:
    """More than four fifths of the prompt tokens were in earlier prompts."""
    applications = suite_of("prefix-loops", count=50)

    prompted = sum(i.prompt_tokens for a in applications for i in a.inferences)
    new = sum(
        later.prompt_tokens - earlier.prompt_tokens - earlier.output_tokens
        for a in applications
        for earlier, later in pairwise(a.inferences)
    ) + sum(a.inferences[0].prompt_tokens for a in applications)
    assert 0 < new < prompted / 5
    assert all(
        (earlier.inference_id,) == later.after
        for a in applications
        for earlier, later in pairwise(a.inferences)
    )


def test_tool_calls_of_the_suite_take_longer_than_model_turns() -> None:
    """At 0.03 s per token, most of the time without contention is tool time."""
    applications = suite_of("tool-gaps", count=50)

    waiting = sum(i.delay_s for a in applications for i in a.inferences)
    decoding = sum(i.output_tokens * 0.03 for a in applications for i in a.inferences)
    assert waiting > 3 * decoding


def test_real_trace_is_played_unchanged(tmp_path: Path) -> None:
    """Each request is an application of its client."""
    rows = "arrival_s,input_tokens,output_tokens,client\n0.5,13,199,13\n2.0,36,137,2\n"
    write_text(tmp_path / "arrivals" / "lmsys_vtc_arrivals.csv", rows)

    applications = suite_of("lmsys", data_dir=tmp_path)
    stretched = suite_of("lmsys", data_dir=tmp_path, window_s=20)

    assert [("client13", 0.5, 13, 199), ("client2", 2.0, 36, 137)] == [
        (a.tenant, a.arrived_at_s, i.prompt_tokens, i.output_tokens)
        for a in applications
        for i in a.inferences
    ]
    assert [5.0, 20.0] == [a.arrived_at_s for a in stretched]


def test_real_trace_without_data_directory_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a data directory"):
        suite_of("lmsys")


@needs_real_data
def test_real_trace_has_the_papers_clients_and_lengths() -> None:
    """The VTC paper (Sec. 5.3) has 27 clients, with mean lengths of 136 and 256 tokens."""
    applications = suite_of("lmsys", data_dir=REAL)
    inferences = [i for a in applications for i in a.inferences]

    # The paper names 210 requests a minute (2,100 in all), but its trace and runs have 1,500.
    assert 1500 == len(applications)
    assert 27 == len({a.tenant for a in applications})
    assert 136 == pytest.approx(sum(i.prompt_tokens for i in inferences) / 1500, abs=1)
    assert 256 == pytest.approx(sum(i.output_tokens for i in inferences) / 1500, abs=1)


@pytest.mark.parametrize("name", [name for name in SUITES if name != "lmsys"])
def test_every_suite_is_valid_and_repeatable(name: str) -> None:
    """Arrivals are sorted, ids unique, graphs without a cycle."""
    options = {"count": 40} if "count" in SUITES[name].takes else {}
    applications = suite_of(name, seed=7, **options)

    assert applications == suite_of(name, seed=7, **options)
    arrivals = [a.arrived_at_s for a in applications]
    assert sorted(arrivals) == arrivals
    assert len(applications) == len({a.application_id for a in applications})
    for application in applications:
        checked_application(application)


def test_unknown_suite_is_refused_with_a_list_of_suites() -> None:
    with pytest.raises(ConfigError, match=r"suite must be one of nine-class, .*, got 'nine'"):
        suite_of("nine")


def test_option_that_a_suite_ignores_is_refused() -> None:
    """An ignored option would make the result look as if it had applied."""
    with pytest.raises(ConfigError, match="suite two-dm does not go by count; it does by seed"):
        suite_of("two-dm", count=3)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"count": 0}, "count must be a whole number >= 1, got 0"),
        ({"tenants": -1}, "tenants must be a whole number >= 1, got -1"),
        ({"window_s": 0}, "window_s must be a number > 0, got 0"),
        ({"window_s": float("nan")}, "window_s must be a number > 0, got nan"),
        ({"arrivals": "weekly"}, "arrivals must be one of mooncake, .*, got weekly"),
    ],
)
def test_suite_option_out_of_range_is_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        SuiteOptions(**options)
