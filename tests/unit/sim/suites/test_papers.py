"""Tests of the Justitia paper's mixed suite."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.sim.suites import SuiteOptions, build_suite
from justitia_ray.sim.suites.papers import MIXES, parse_mix
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference, checked_application
from tests.unit.sim.data_directory import REAL, needs_real_data, write_lines

SMALL, MEDIUM, LARGE = {"EV", "FV", "CC", "ALFWI", "KBQAV"}, {"CG", "PE", "SC"}, {"DM", "MRS"}
"""Classes by size, as in the Justitia paper (v1, Sec. V-A)."""


def nine_class_suite(**options: Any) -> list[WorkloadApplication]:
    return build_suite("nine-class", SuiteOptions(**options))


def without_arrivals(applications: list[WorkloadApplication]) -> list[WorkloadApplication]:
    return [replace(application, arrived_at_s=0.0) for application in applications]


def write_runs(data_dir: Path) -> Path:
    """Write two recorded runs of CC with their inputs, and two questions of SC."""
    meta = {"recorded_cot_chars": {"one": 330, "two": 660, "three": 6600}}
    for n in range(2):
        stages = [{"name": "generate_testcases", "calls": [[100 + 100 * n, 10]]}]
        write_lines(data_dir / "recorded" / "CC.jsonl", {"item_id": f"CC-{n}", "stages": stages})
        write_lines(data_dir / "apps" / "CC.jsonl", {"id": f"CC-{n}", "input": f"task {n}"})
        write_lines(
            data_dir / "apps" / "SC.jsonl", {"id": f"SC-{n}", "input": "xy"[n] * 60, "meta": meta}
        )
    return data_dir


def test_suite_has_the_papers_mix_of_classes() -> None:
    """Of a hundred applications in nine classes, 72 are small, 26 medium and 2 large."""
    for name, medium in [("paper", {"PE", "SC"}), ("recorded", {"PE", "CG"})]:
        mix = MIXES[name]

        assert SMALL | medium | LARGE == set(mix)
        assert [72, 26, 2] == [
            sum(mix[c] for c in mix if c in size) for size in (SMALL, MEDIUM, LARGE)
        ]


def test_three_hundred_applications_have_exactly_the_mix() -> None:
    """Six large applications carry most of the load, so their number is not random."""
    classes = Counter(
        application.application_class for application in nine_class_suite(count=300, seed=5)
    )

    assert {name: 3 * number for name, number in MIXES["paper"].items()} == classes


def test_recorded_run_keeps_its_own_text(tmp_path: Path) -> None:
    """A predictor learns the cost of a text from the run that belongs to it."""
    applications = nine_class_suite(
        count=4, data_dir=write_runs(tmp_path), mix="CC=1", arrivals="uniform"
    )

    prompts = {"task 0": 100, "task 1": 200}
    assert all(prompts[a.input] == a.inferences[0].prompt_tokens for a in applications)
    # every run is used once, and then every run again
    assert {"task 0", "task 1"} == {a.input for a in applications[:2]}
    assert [a.input for a in applications[:2]] == [a.input for a in applications[2:]]


@pytest.mark.parametrize("name", ["CC", "SC"])
def test_seed_selects_the_first_recorded_run(tmp_path: Path, name: str) -> None:
    """A few applications with five seeds would otherwise be one run five times."""
    write_runs(tmp_path)

    first = [
        nine_class_suite(
            count=1, data_dir=tmp_path, mix=f"{name}=1", arrivals="uniform", seed=seed
        )[0].input
        for seed in range(12)
    ]

    assert 2 == len(set(first))


def test_votes_are_samples_of_recorded_answers(tmp_path: Path) -> None:
    [application] = nine_class_suite(
        count=1, data_dir=write_runs(tmp_path), mix="SC=1", arrivals="uniform", sc_samples=60
    )

    assert 60 == len(application.inferences)
    assert {200} == {i.prompt_tokens for i in application.inferences}
    assert {100, 200, 512} == {i.output_tokens for i in application.inferences}
    assert {()} == {i.after for i in application.inferences}


def test_arrival_window_changes_only_the_arrival_times() -> None:
    """In a comparison of 1x, 2x and 3x only the density may differ."""
    sparse, dense = (
        nine_class_suite(count=60, window_s=1080),
        nine_class_suite(count=60, window_s=360),
    )

    assert without_arrivals(sparse) == without_arrivals(dense)
    assert [3 * a.arrived_at_s for a in dense] == pytest.approx(
        [a.arrived_at_s for a in sparse], abs=1e-5
    )


@pytest.mark.parametrize("change", [{"arrivals": "uniform"}, {"tenants": 3}])
def test_suite_options_are_drawn_independently(change: dict[str, Any]) -> None:
    """A study that varies one option must draw the same applications."""
    before, after = nine_class_suite(count=60), nine_class_suite(count=60, **change)

    def shapes_of(applications: list[WorkloadApplication]) -> list[Any]:
        return [(a.application_class, a.inferences) for a in applications]

    assert shapes_of(before) == shapes_of(after)


def test_seed_determines_the_load_and_more_applications_extend_it() -> None:
    """A longer load begins with the applications of a shorter one."""
    some, more = nine_class_suite(count=50), nine_class_suite(count=150)

    assert without_arrivals(some) == without_arrivals(more)[:50]
    assert nine_class_suite(count=50, seed=3) == nine_class_suite(count=50, seed=3)
    assert without_arrivals(nine_class_suite(count=50, seed=3)) != without_arrivals(
        nine_class_suite(count=50, seed=4)
    )


def test_tenants_of_the_suite_share_the_load() -> None:
    """Each of three tenants has 100 ± 25 of 300 applications, three standard deviations."""
    by_tenant = Counter(application.tenant for application in nine_class_suite(tenants=3))

    assert {"t0", "t1", "t2"} == set(by_tenant)
    assert all(75 <= number <= 125 for number in by_tenant.values())
    assert {"default"} == {application.tenant for application in nine_class_suite(count=9)}


def test_suite_keeps_a_given_mix_of_classes() -> None:
    """Of every four applications three are KBQAV and one MRS."""
    applications = nine_class_suite(count=8, mix="KBQAV=3, MRS=1, PE=0")

    for deck in (applications[:4], applications[4:]):
        assert {"KBQAV": 3, "MRS": 1} == Counter(a.application_class for a in deck)


@pytest.mark.parametrize(
    "mix", ["", "paper,recorded", "XY=1", "CC", "CC=-1", "CC=0.5", "CC=1,CC=2", "CC=99999", "CC=0"]
)
def test_invalid_mix_is_refused(mix: str) -> None:
    with pytest.raises(ConfigError, match="mix must "):
        parse_mix(mix)


def test_class_without_recorded_runs_is_refused(tmp_path: Path) -> None:
    """Generated runs among recorded ones would pass for measurements."""
    write_runs(tmp_path)

    with pytest.raises(ConfigError, match=r"recorded/PE\.jsonl: must hold at least one run"):
        nine_class_suite(count=4, data_dir=tmp_path, mix="PE=1", arrivals="uniform")


@pytest.mark.parametrize(
    "meta", [None, {}, {"recorded_cot_chars": {}}, {"recorded_cot_chars": {"m": 0}}]
)
def test_question_without_recorded_answers_is_refused(tmp_path: Path, meta: Any) -> None:
    """The samples of a question without recorded answers would have no length."""
    write_lines(tmp_path / "apps" / "SC.jsonl", {"id": "SC-0", "input": "x", "meta": meta})

    with pytest.raises(ConfigError, match=r"SC\.jsonl:1: meta\.recorded_cot_chars must be"):
        nine_class_suite(count=1, data_dir=tmp_path, mix="SC=1", arrivals="uniform")


@needs_real_data
def test_every_class_has_its_recorded_texts_except_mrs() -> None:
    applications = nine_class_suite(count=300, window_s=360, seed=1, data_dir=REAL)

    assert set(MIXES["paper"]) == {a.application_class for a in applications}
    assert {"MRS"} == {a.application_class for a in applications if not a.input}
    assert (0.0, 360.0) == (applications[0].arrived_at_s, applications[-1].arrived_at_s)
    for application in applications:
        checked_application(application)
    applications = nine_class_suite(count=300, seed=1, data_dir=REAL)
    texts = [a.input for a in applications if a.input and a.application_class != "ALFWI"]
    assert len(texts) == len(set(texts))


@needs_real_data
def test_simulated_code_generation_waits_for_the_sandbox_between_turns() -> None:
    """A turn follows the previous one after about 12 s, the recorded gap."""
    loops = [a.inferences for a in nine_class_suite(count=131, mix="CG=1", data_dir=REAL)]
    later: list[WorkloadInference] = [turn for turns in loops for turn in turns[1:]]

    assert 36 == len(later)
    assert all(12 < turn.delay_s < 13 and len(turn.after) == 1 for turn in later)
