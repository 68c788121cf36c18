"""The report of scripts/bench_serve: pairs, verdicts, arms chosen by name."""

from pathlib import Path

import pytest

from justitia_ray.errors import JustitiaError
from scripts.bench.load import Sample
from scripts.bench.serve import Measured
from scripts.bench.serve_arms import Arm, release_arm
from scripts.bench.serve_figures import CALLS, FIRST_TOKEN_P50, Block
from scripts.bench.serve_loads import (
    CONCURRENT,
    IDLE_STREAM,
    SATURATED_UNARY,
    SETTINGS,
    arms_of,
    order_of,
)
from scripts.bench.serve_report import TARGETS, compare, verdicts


def measured_block(ttft_s: float, output_tokens: int = 10) -> Block:
    samples = tuple(Sample(ttft_s, 2 * ttft_s, 1.0 + k, output_tokens, 4) for k in range(6))
    return Block(samples, 2, {"proxy": 2.0, "ingress": 3.0, "client": 100.0})


def measured_pairs(ours: list[float], theirs: list[float], ratio: float = 1.0) -> Measured:
    found = Measured()
    for a, b in zip(ours, theirs, strict=True):
        for load in (IDLE_STREAM, CONCURRENT, SATURATED_UNARY):
            found.add_block(load, "justitia", measured_block(a, round(1_000 * ratio)))
            found.add_block(load, "direct", measured_block(b, 1_000))
    return found


def test_added_time_is_the_median_of_the_paired_differences() -> None:
    blocks = measured_pairs([0.013, 0.104, 0.050], [0.010, 0.100, 0.020])
    added = compare(blocks, IDLE_STREAM, FIRST_TOKEN_P50, "justitia", "direct").compared

    assert (4.0, 3.0, 30.0) == pytest.approx((added.median, added.low, added.high))


def test_cpu_time_of_a_call_excludes_the_client() -> None:
    """The client runs on the same machine, but is no cost of an arm."""
    assert 5.0 == measured_block(0.01).cpu_ms_per_call


@pytest.mark.parametrize(
    ("setting", "added_s", "ratio", "met"),
    [
        ("fake", 0.0049, 0.97, [True, True, True]),
        ("fake", 0.0051, 0.97, [False, False, True]),
        ("fake", 0.0, 0.96, [True, True, False]),
        ("vllm", 0.0, 0.90, [True, True, True]),
        ("vllm", 0.0, 0.89, [True, True, False]),
    ],
)
def test_benchmark_verdicts_follow_the_targets(
    setting: str, added_s: float, ratio: float, met: list[bool]
) -> None:
    judged = verdicts(setting, measured_pairs([0.01 + added_s], [0.01], ratio))

    assert met == [verdict.met for verdict in judged]
    assert all(str(verdict).startswith("MET" if verdict.met else "MISSED") for verdict in judged)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_benchmark_target_is_measured(name: str) -> None:
    """A target whose load or arm was renamed would silently never be checked."""
    loads = SETTINGS[name].choose_loads(None, quick=True, release=Arm("release"))
    arms_by_load = {load.name: {arm.name for arm in load.all_arms} for load in loads}

    for target in TARGETS[name]:
        assert {target.arm, target.against or target.arm} <= arms_by_load[target.load]


@pytest.mark.parametrize("count", [2, 3])
def test_every_arm_is_called_equally_often_in_every_position(count: int) -> None:
    """A machine that slows down would otherwise cost the arm that is always called last."""
    arms = tuple(Arm(str(number)) for number in range(count))
    orders = [order_of(arms, repeat) for repeat in range(2 * count)]

    places = [[order.index(arm) for order in orders] for arm in arms]
    assert [count * (count - 1)] * count == [sum(of) for of in places]
    assert orders[0] == orders[1][::-1]


def test_compared_release_is_measured_under_the_same_loads(tmp_path: Path) -> None:
    release = release_arm(Path(__file__).parents[3])
    loads = SETTINGS["path"].choose_loads(["justitia", "release"], quick=True, release=release)

    assert {("floor", "justitia", "release")} == {
        tuple(arm.name for arm in load.all_arms) for load in loads
    }
    with pytest.raises(JustitiaError, match=r"--release .*: there is no justitia_ray"):
        release_arm(tmp_path)


def test_selected_arms_are_measured_with_their_baselines() -> None:
    """A single rival can be measured without the minutes that all other arms take."""
    path = SETTINGS["path"]
    chosen = path.choose_loads(["justitia"], quick=True)

    assert ["floor", "justitia"] == [arm.name for arm in arms_of(chosen)]
    with pytest.raises(JustitiaError, match=r"--arms: nobody is no arm of path; .*litellm"):
        path.choose_loads(["nobody"], quick=True)


@pytest.mark.parametrize("quick", [True, False])
def test_each_load_has_enough_calls_after_trimming_its_start_and_end(quick: bool) -> None:
    loads = [load for setting in SETTINGS.values() for load in setting.loads(quick=quick)]
    few = [
        str(load) for load in loads if CALLS in load.figures and load.calls < 2 * load.callers + 1
    ]

    assert not few
    assert loads
