"""The simulator's model of the engines that ran a load, and its prediction of a run.

A shared machine varies in speed: the same load cost its engines between 20 and 31 s of CPU time
within minutes. A speedometer beside the engines measures the speed during a play, so that the
prediction uses nothing measured in the engines. The mean completion time is the integral of the
number of open applications; each reading is therefore weighted by that number.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from justitia_ray.predictor.observation import Observation
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.results import RunResult, mean_jct_s
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.units import Seconds
from scripts.bench.live_records import PlayedApplication, RecordedInference, as_workload
from scripts.bench.live_session import FCFS, Arm, LiveRun
from scripts.bench.residence import CallAtReplica, ResidenceFit, fit_residence

REPORT_INTERVAL_S: Seconds = 0.25
"""Age limit of the scheduler's data on running inferences (`replica.report_interval_s`)."""
_PACE_ROUNDS = 6
_PACE_TOLERANCE = 0.01
_LEAST_SLOPE, _MOST_SLOPE = 0.5, 4.0
"""Smallest and largest plausible slope of completion time over iteration time, on log scales."""
_ANSWER_SHARE = 0.5
"""Assumed share of a call's overhead outside queue and replica that falls on its answer."""
_UNDISTURBED = 0.1
"""Assumed share of calls that pass proxy and ingress without meeting another call."""
_MOST_FRONT_END_S: Seconds = 0.2
_FRONT_END_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Prediction:
    """The simulator's prediction of one run."""

    usual: RunResult
    """Simulated result, had the machine been as fast as during the fit."""
    slowness: float
    """Ratio of the machine's iteration times to those during the fit."""
    result: RunResult
    """Simulated result at the machine speed that was measured during the run."""


@dataclass(frozen=True, slots=True)
class LiveModel:
    """Model of several engines that share a machine with the rest of the service."""

    engine: EngineProfile
    """Engine profile with the times that hold while every engine is busy."""
    replicas: int
    call_latency_s: Seconds
    """Seconds that a call spends outside queue, front end, dispatch and engine."""
    dispatch_s: Seconds
    """Seconds between the grant of a lease and the prompt's arrival in the engine."""
    front_end_s: Seconds
    """Seconds for which each call occupies the front end (proxy and ingress), in each direction."""
    hold_up_s: Seconds
    """Seconds for which a call blocks all engines on its arrival, and again at its end."""
    fit: ResidenceFit
    pace: float
    """Factor on all fitted times that makes simulated mean completion times right on average."""
    usual_reading_s: Seconds | None
    """Typical reading of the speed test during the fitted runs, in seconds; None without the test.
    """

    def predict(self, run: LiveRun, history: Sequence[Observation]) -> Prediction:
        usual = self._simulate_run(run, history)
        slowness = _slowness(run, self.usual_reading_s)
        if slowness == 1.0:
            return Prediction(usual, 1.0, usual)
        return Prediction(
            usual, slowness, self._scale_all_times(slowness)._simulate_run(run, history)
        )

    def total_time_s(self, played: Sequence[PlayedApplication]) -> Seconds:
        """Return the seconds that all engines need per application if all arrive at once."""
        at_once = [replace(one, arrived_at_s=0.0) for one in as_workload(played)]
        return simulate(at_once, self._run_settings(FCFS, played, ())).makespan_s / len(at_once)

    def _simulate_run(self, run: LiveRun, history: Sequence[Observation]) -> RunResult:
        load = as_workload(run.played, self.call_latency_s)
        result = simulate(load, self._run_settings(run.arm, run.played, history))
        planned = {one.name: one.record.application_class for one in run.played}
        # The simulation has a class per application; its report has the planned class.
        for row in result.applications:
            row.application_class = planned[row.application_id]
        return result

    def _run_settings(
        self, arm: Arm, played: Sequence[PlayedApplication], history: Sequence[Observation]
    ) -> RunSettings:
        return RunSettings(
            engine=self.engine,
            policy=arm.policy,
            policy_options=dict(arm.options),
            replicas=self.replicas,
            prediction="table",
            predicted_costs={
                one.name: one.recorded.predicted_kv_token_time
                for one in played
                if one.recorded is not None
            },
            history=history,
            lengths_are_known=True,
            report_interval_s=REPORT_INTERVAL_S,
            dispatch_s=self.dispatch_s,
            front_end_s=self.front_end_s,
            hold_up_s=self.hold_up_s,
        )

    def _scale_all_times(self, by: float) -> "LiveModel":
        """Return the model with all times multiplied by a factor."""
        return replace(
            self,
            engine=replace(self.engine, iteration=self.engine.iteration.scaled(by)),
            call_latency_s=self.call_latency_s * by,
            dispatch_s=self.dispatch_s * by,
            front_end_s=self.front_end_s * by,
            hold_up_s=self.hold_up_s * by,
            pace=self.pace * by,
        )


def fit_model(
    plays: Sequence[LiveRun],
    history: Sequence[Observation],
    start: EngineProfile,
    replicas: int,
) -> LiveModel:
    """Fit a model on runs in which all engines were busy; deterministic.

    Args:
        plays: At least one; none that predictions are to be tried on. Policies that put different
            calls side by side tell more than one policy twice.
        history: What the service knew of the stages of each class, if the policies ask for it.
        start: Its name, memory and rules are kept, its costs are not.
        replicas: How many engines there are.

    Raises:
        ConfigError: If too little was played to fit anything.
    """
    readings = [reading for run in plays if (reading := mean_speed_reading_s(run)) is not None]
    usual_s = statistics.geometric_mean(readings) if len(readings) == len(plays) else None
    slowness = [_slowness(run, usual_s) for run in plays]
    fit = fit_residence(
        [calls_at_replicas(run.played, slow) for run, slow in zip(plays, slowness, strict=True)]
    )
    rows = [row for run in plays for one in run.played for row in one.inferences]
    ways_s = sorted(map(_queue_transit_s, rows))
    alone_s = ways_s[int(_UNDISTURBED * len(ways_s))]
    model = LiveModel(
        engine=replace(start, iteration=fit.cost, speedup=1.0),
        replicas=replicas,
        call_latency_s=min(row.waited_s for row in rows) + alone_s,
        dispatch_s=statistics.fmean(map(_dispatch_delay_s, rows)) + fit.call_latency_s,
        front_end_s=0.0,
        hold_up_s=fit.hold_up_s,
        fit=fit,
        pace=1.0,
        usual_reading_s=usual_s,
    )
    meetings_s = (statistics.fmean(ways_s) - alone_s) / 2
    model = _with_front_end(model, plays, history, meetings_s)

    def log_error_at(pace: float) -> float:
        """Return log(predicted / measured completion time) if all times are scaled by `pace`."""
        return statistics.fmean(
            _log_time_ratio(run, model._scale_all_times(pace * slow)._simulate_run(run, history))
            for run, slow in zip(plays, slowness, strict=True)
        )

    return model._scale_all_times(_find_zero(log_error_at))


def mean_speed_reading_s(run: LiveRun) -> Seconds | None:
    """Return the mean speed reading of the machine while applications were open; None without one.

    The result is a geometric mean, weighted by the number of open applications.
    """
    spans = [(one.record.arrived_at_s, one.record.finished_at_s) for one in run.played]
    readings = [
        (math.log(cpu_s), sum(arrived_at <= at < ended_at for arrived_at, ended_at in spans))
        for at, cpu_s in run.speed
        if cpu_s > 0
    ]
    open_in_all = sum(count for _, count in readings)
    if not open_in_all:
        return None
    return math.exp(sum(level * count for level, count in readings) / open_in_all)


def _slowness(run: LiveRun, usual_s: Seconds | None) -> float:
    reading = mean_speed_reading_s(run)
    return 1.0 if reading is None or usual_s is None else reading / usual_s


def _log_time_ratio(run: LiveRun, simulated: RunResult) -> float:
    """Return the logarithm of simulated over measured mean completion time."""
    live = statistics.fmean(one.record.jct_s for one in run.played if one.is_whole)
    said = mean_jct_s(simulated.applications)
    assert said is not None
    return math.log(said / live)


def _with_front_end(
    model: LiveModel,
    plays: Sequence[LiveRun],
    history: Sequence[Observation],
    passing_s: Seconds,
) -> LiveModel:
    """Return the model with a front end (proxy and ingress) of this mean passing time.

    The time is found by bisection, because it determines which calls meet each other.
    """
    low, high = 0.0, _MOST_FRONT_END_S
    for _ in range(_FRONT_END_ROUNDS):
        middle = (low + high) / 2
        tried = replace(model, front_end_s=middle)
        passed = [tried._simulate_run(run, history).front_end_s for run in plays]
        if statistics.fmean(passed) < passing_s:
            low = middle
        else:
            high = middle
    return replace(model, front_end_s=low)


def calls_at_replicas(
    played: Sequence[PlayedApplication], slowness: float = 1.0
) -> list[CallAtReplica]:
    """Return the intervals of a run's calls at their replicas, for calls that report them.

    Args:
        played: The play.
        slowness: How much slower than usual the machine was; instants are as if it had not been.
    """
    calls = []
    for row in (row for one in played for row in one.inferences):
        if row.replica is None:
            continue
        ended_at_s = row.finished_at_s - _ANSWER_SHARE * _queue_transit_s(row)
        calls.append(
            CallAtReplica(
                row.replica,
                (ended_at_s - row.ran_s) / slowness,
                ended_at_s / slowness,
                row.prompt_tokens,
                row.output_tokens,
            )
        )
    return calls


def _dispatch_delay_s(row: RecordedInference) -> Seconds:
    """Return the seconds for which a call had its lease before it reached its replica."""
    return max(0.0, row.leased_s - row.ran_s)


def _queue_transit_s(row: RecordedInference) -> Seconds:
    """Return the seconds for which a call was under way without a lease, to the queue or back."""
    took_s = row.finished_at_s - row.submitted_at_s
    return max(0.0, took_s - row.waited_s - row.ran_s - _dispatch_delay_s(row))


def _find_zero(error: Callable[[float], float]) -> float:
    """Return an approximate zero of an increasing function of the pace, by log-space secants.

    The function is not smooth, because batches form differently whenever times change; the best of
    several rounds is returned.
    """
    tried = [(0.0, error(1.0))]
    at = -tried[0][1] / 2
    for _ in range(_PACE_ROUNDS):
        tried.append((at, error(math.exp(at))))
        (before, was), (now, found) = tried[-2:]
        if abs(found) < _PACE_TOLERANCE:
            break
        slope = (found - was) / (now - before) if now != before else 1.0
        at = now - found / min(max(slope, _LEAST_SLOPE), _MOST_SLOPE)
    return math.exp(min(tried, key=lambda one: abs(one[1]))[0])
