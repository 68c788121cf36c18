"""The figures of an elephant among mice, on engines and simulated."""

from justitia_ray.bench.live_arms import JUSTITIA, SRJF
from justitia_ray.bench.live_elephant import elephant_figures, elephant_line
from justitia_ray.bench.live_figures import live_results
from justitia_ray.bench.live_model import Prediction
from justitia_ray.sim.results import Lateness, RunResult
from tests.unit.bench.live_made_up import application, inference, run


def result(elephant_s: float, *mice_s: float) -> RunResult:
    """Return the rows of applications that took so long, the elephant's first."""
    played = [
        application(number, 0.0, [inference(0.0, jct_s)])
        for number, jct_s in enumerate((elephant_s, *mice_s))
    ]
    return live_results([run(SRJF, played)])[SRJF.name]


def test_elephant_and_mice_are_told_apart_and_compared_with_what_was_simulated() -> None:
    """The mean of all is what the simulator is held to; whoever is alone shows where it is off."""
    live, simulated = result(30.0, 2.0, 4.0), result(24.0, 4.0, 2.0)
    live.lateness["a000"] = Lateness(lag_s=-1.5, bound_s=7.0)
    found = elephant_figures(live, Prediction(simulated, 1.2, simulated))

    assert (found["elephant_jct_s"], found["simulated_elephant_jct_s"]) == (30.0, 24.0)
    assert (found["mice_jct_s"], found["simulated_mice_jct_s"]) == (3.0, 3.0)
    assert (found["mean_jct_s"], found["simulated_mean_jct_s"]) == (12.0, 10.0)
    assert found["error"] == 10.0 / 12.0 - 1
    assert (found["lag_s"], found["bound_s"], found["slowness"]) == (-1.5, 7.0, 1.2)
    line = elephant_line(JUSTITIA.name, found)
    assert "its time 30.0 s (24.0 s), that of mice 3.0 s (3.0 s), of all 12.0 s (10.0 s)" in line
    assert "off by -17%; lag -1.5 s, bound 7.0 s; machine slower 1.20." in line


def test_policies_that_promise_no_bound_have_none() -> None:
    """A nought there would be a promise."""
    alone = result(30.0)
    found = elephant_figures(alone, Prediction(alone, 1.0, alone))

    assert (found["lag_s"], found["bound_s"], found["mice_jct_s"]) == (None, None, None)
    assert "that of mice – (–)" in elephant_line(SRJF.name, found)
    assert "lag –, bound –" in elephant_line(SRJF.name, found)
