"""Calibration of predicted starts: predictions compared with true starts.

In a simulated run the next start of every application that waits and has no running inference is
predicted: as soon as it waits, and repeatedly while it waits. Each prediction is compared with an
estimate that does not read the queue: the waiting times of the class in the last hour.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field
from typing import NamedTuple

from justitia_ray.core.calibration import Quantiles
from justitia_ray.core.entities import Application
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import Simulation
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.units import ApplicationId, Seconds

LEVELS = (0.1, 0.5, 0.9)
_ASKS_AGAIN_S: Seconds = 5.0
_LATER = 1.5
"""A start is predicted again when the application's waiting time has grown by this factor."""
_HOUR_S: Seconds = 3600.0
_LEAST_KNOWN = 3
"""Minimum number of waiting times from which quantiles are computed."""
_UNKNOWN = Quantiles(1.0, 5.0, 30.0)
"""Quantiles in seconds that are used before any waiting time is known."""


@dataclass(slots=True)
class PredictedStart:
    """When an application was predicted to start, and when it did start."""

    application_id: ApplicationId
    application_class: str
    at: Seconds
    waited_s: Seconds
    """Seconds that the application had waited when its start was predicted."""
    is_first: bool
    """Whether the application had started no inference when its start was predicted."""
    expected: Quantiles
    """Predicted quantiles of the seconds until the application's next start."""
    started_s: Seconds | None = None
    """True seconds until the application's next start; None until it starts."""

    @property
    def made_at_arrival(self) -> bool:
        """Whether the prediction was made when the application arrived."""
        return self.is_first and not self.waited_s


@dataclass(slots=True)
class _ApplicationWait:
    since: Seconds
    asks_at: Seconds
    told: list[PredictedStart] = field(default_factory=list)


class _AskingSimulation(Simulation):
    """Simulation that predicts when each waiting application will start."""

    def __init__(self, applications: Sequence[WorkloadApplication], settings: RunSettings) -> None:
        super().__init__(applications, settings)
        self.told: list[PredictedStart] = []
        self._waits: dict[ApplicationId, _ApplicationWait] = {}

    def _step(self, now: Seconds) -> None:
        super()._step(now)
        known = self._core.state.applications
        for name in [name for name in self._waits if not _has_only_waiting(known.get(name))]:
            for told in self._waits.pop(name).told:
                told.started_s = now - told.at
        asking = []
        for application in self._core.ledger.queue.in_order():
            name = application.application_id
            if not _has_only_waiting(application):
                continue
            if name not in self._waits:
                self._waits[name] = _ApplicationWait(now, now)
            if self._waits[name].asks_at <= now:
                asking.append(application)
        outlooks = self._core.outlooks.ask([one.application_id for one in asking])
        for application in asking:
            wait = self._waits[application.application_id]
            waited_s = now - wait.since
            wait.asks_at = now + max(_ASKS_AGAIN_S, (_LATER - 1) * waited_s)
            expected = outlooks[application.application_id].expected_start_s
            if expected is not None:
                told = PredictedStart(
                    application.application_id,
                    application.application_class,
                    now,
                    waited_s,
                    application.first_dispatched_at is None,
                    expected,
                )
                wait.told.append(told)
                self.told.append(told)


def _has_only_waiting(application: Application | None) -> bool:
    return application is not None and bool(application.waiting) and not application.in_flight


def predict_starts(
    applications: Sequence[WorkloadApplication], settings: RunSettings
) -> list[PredictedStart]:
    """Simulate a run that predicts the start of each waiting application.

    Raises:
        ConfigError: If a setting is not allowed.
    """
    run = _AskingSimulation(applications, settings)
    run.run(lambda ended: None)
    return run.told


def by_last_hour(told: Sequence[PredictedStart]) -> list[Quantiles]:
    """Return, for each prediction, quantiles of its class's waiting times in the hour before.

    For an application that has already waited w seconds: the longer waiting times, each less w. If
    the class has fewer than three such times, the times of all classes are used.
    """
    known: dict[str, list[tuple[Seconds, Seconds]]] = {}
    came = sorted(
        (one.at + one.started_s, number)
        for number, one in enumerate(told)
        if not one.waited_s and one.started_s is not None
    )
    said, taken = [], 0
    for one in told:
        while taken < len(came) and came[taken][0] <= one.at:
            at, number = came[taken]
            waited_s = told[number].started_s
            assert waited_s is not None
            for kind in (told[number].application_class, ""):
                known.setdefault(kind, []).append((at, waited_s))
            taken += 1
        said.append(_UNKNOWN)
        for kind in (one.application_class, ""):
            left = [
                waited_s - one.waited_s
                for at, waited_s in known.get(kind, ())
                if at > one.at - _HOUR_S and (not one.waited_s or waited_s > one.waited_s)
            ]
            if len(left) >= _LEAST_KNOWN:
                said[-1] = _quantiles_of(left)
                break
    return said


def _quantiles_of(values: Iterable[Seconds]) -> Quantiles:
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return Quantiles(cuts[0], cuts[4], cuts[8])


class Score(NamedTuple):
    """Comparison of predicted quantiles with true times."""

    tellings: int
    covered: float
    """Share of the true starts between the predicted p10 and p90."""
    early: float
    """Share of the true starts before the predicted p10."""
    late: float
    """Share of the true starts after the predicted p90."""
    pinball_s: Seconds
    """Mean pinball loss of the predicted quantiles, in seconds."""
    median_error_s: Seconds
    """Median absolute error of the predicted median, in seconds."""


def score(pairs: Iterable[tuple[Quantiles, Seconds]]) -> Score | None:
    """Compare predicted quantiles with true times; None without any."""
    known = list(pairs)
    if not known:
        return None
    early = sum(came < said.p10 for said, came in known) / len(known)
    late = sum(came > said.p90 for said, came in known) / len(known)
    loss = statistics.fmean(_pinball_loss(said, came) for said, came in known)
    error = statistics.median(abs(came - said.p50) for said, came in known)
    return Score(len(known), 1 - early - late, early, late, loss, error)


def _pinball_loss(said: Quantiles, came: Seconds) -> Seconds:
    return statistics.fmean(
        max(level * (came - at), (1 - level) * (at - came))
        for level, at in zip(LEVELS, astuple(said), strict=True)
    )
