"""The curve of turns a minute over concurrent agents, from recorded plays."""

from scripts.bench.agents_curve import CurvePoint, curve, curve_table
from scripts.bench.agents_player import Play, TurnSample
from scripts.bench.agents_report import Pair


def play_of_equal_turns(turns: int, cached: int, elapsed_s: float = 60.0) -> Play:
    """Return a play of equal turns, each with 100 prompt tokens."""
    made = [
        TurnSample("s", place, 0.0, elapsed_s * (place + 1) / turns, 100, cached, 10)
        for place in range(turns)
    ]
    return Play({"s": elapsed_s}, tuple(made), ())


def pairs_of(load: str, agents: int, *plays: dict[str, Play]) -> list[Pair]:
    return [Pair(load, repeat, agents, play) for repeat, play in enumerate(plays)]


RECORDED = [
    *pairs_of(
        "synthetic of 32",
        32,
        {"ours": play_of_equal_turns(90, 80), "pinned": play_of_equal_turns(20, 2)},
        {"ours": play_of_equal_turns(100, 82), "pinned": play_of_equal_turns(24, 4)},
        {"ours": play_of_equal_turns(96, 81), "pinned": play_of_equal_turns(23, 3)},
    ),
    *pairs_of(
        "synthetic of 8",
        8,
        {"ours": play_of_equal_turns(100, 90), "pinned": play_of_equal_turns(92, 90)},
    ),
    *pairs_of("common of 48", 48, {"ours": play_of_equal_turns(10, 90)}),
]


def test_agents_curve_has_the_median_of_the_repeats() -> None:
    points = {(one.load, one.agents, one.arm): one for one in curve(RECORDED)}

    assert CurvePoint("synthetic", 32, "ours", 96.0, 0.81, 0.96) == points["synthetic", 32, "ours"]
    assert (
        CurvePoint("synthetic", 32, "pinned", 23.0, 0.03, 0.25) == points["synthetic", 32, "pinned"]
    )
    assert 1.0 == points["common", 48, "ours"].of_best
    assert 5 == len(points)


def test_agents_table_has_a_row_for_each_number_of_agents() -> None:
    """A load with one number of agents has no curve."""
    head, *rows = curve_table(curve(RECORDED)).splitlines()

    assert "ours: turns/min" in head
    assert [
        ["synthetic", "8", "100", "100", "90", "92", "100", "90"],
        ["synthetic", "32", "96", "96", "81", "23", "25", "3"],
    ] == [row.split() for row in rows if "synthetic" in row]
    assert not [row for row in rows if "common" in row]


def test_agents_table_has_a_dash_for_an_arm_without_a_run() -> None:
    pairs = [*RECORDED, *pairs_of("synthetic of 64", 64, {"ours": play_of_equal_turns(90, 80)})]
    last = curve_table(curve(pairs)).splitlines()[-1].split()

    assert ["synthetic", "64", "90", "90", "80", "–", "–", "–"] == last


def test_agents_curve_has_one_point_per_multiple_of_the_memory() -> None:
    pairs = [
        Pair("sessions 3", repeat, agents, {"ours": play_of_equal_turns(10, 50)})
        for repeat, agents in enumerate((11, 12, 14))
    ]

    assert [12] == [point.agents for point in curve(pairs)]
    assert "" == curve_table(curve(pairs))


def test_run_without_turns_has_zero_throughput_on_the_curve() -> None:
    empty = Play({}, (), ("it failed",))

    assert [0.0] == [one.of_best for one in curve(pairs_of("synthetic of 8", 8, {"ours": empty}))]
