"""A replica of constant iterations that drives a core, to hold the fairness bound to.

Every running inference gains a token an iteration; predictions are true; every inference of an
application is submitted on its arrival, and the application is closed. The report of an iteration
comes at its end, so service and V move in steps of one iteration.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from justitia_ray.core import SchedulerCore, Timeouts
from justitia_ray.core import events as ev
from justitia_ray.core.actions import EndApplication, Grant
from justitia_ray.core.entities import Outcome, ReplicaCapacity
from justitia_ray.core.invariants import check
from justitia_ray.cost import kv_token_time
from tests.exact import exact

_ITERATION_S = 0.03
_NEVER_S = 1e9


@dataclass(frozen=True)
class Arrival:
    """An application: when it comes, and the (prompt, output) tokens of its inferences."""

    iteration: int
    inferences: tuple[tuple[int, int], ...]
    weight: Fraction = Fraction(1)

    @property
    def cost(self) -> int:
        """Its true cost, token·iterations."""
        return sum(int(kv_token_time(p, d)) for p, d in self.inferences)


@dataclass
class Lags:
    """What the run showed, in token·iterations of served work."""

    worst: int = 0
    """Largest S(e) − S(f̄): e the last start of an application, f̄ when V reached its final tag."""
    in_flight: int = 0
    """I: largest remaining work in flight."""
    report: int = 0
    """Largest service of one report: V is known at their ends only."""


@dataclass
class _Running:
    prompt: int
    output: int
    made: int = 0

    @property
    def remaining(self) -> int:
        return int(kv_token_time(self.prompt, self.output) - kv_token_time(self.prompt, self.made))


@dataclass
class OneReplica:
    """Runs applications to their end on one replica."""

    kv_tokens: int
    seats: int
    policy: str = "justitia"
    admission: str = "peak"
    _running: dict[str, _Running] = field(default_factory=dict)
    _sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    _served: int = 0
    _levels: list[tuple[int, float]] = field(default_factory=list)
    """After each report: service before it, V after it."""
    _last_start: dict[str, int] = field(default_factory=dict)
    _final_tag: dict[str, float] = field(default_factory=dict)

    def run(self, arrivals: Sequence[Arrival]) -> Lags:
        """Return what the order of the core did to these applications."""
        timeouts = Timeouts(_NEVER_S, _NEVER_S, _NEVER_S, _NEVER_S, _NEVER_S)
        core = SchedulerCore(self.policy, admission=self.admission, timeouts=timeouts)
        lags = Lags()
        iteration = 0
        while len(self._final_tag) < len(arrivals):
            now = iteration * _ITERATION_S
            for number, arrival in enumerate(arrivals):
                if arrival.iteration == iteration:
                    self._arrive(core, f"a{number}", arrival, now)
            lags.report = max(lags.report, self._report(core, now))
            remaining = sum(running.remaining for running in self._running.values())
            lags.in_flight = max(lags.in_flight, remaining)
            iteration += 1
        lags.worst = max(self._lag(name) for name in self._final_tag)
        return lags

    def _arrive(self, core: SchedulerCore, name: str, arrival: Arrival, now: float) -> None:
        weight, cost = exact(arrival.weight), exact(arrival.cost)
        core.handle(ev.ApplicationArrived(name, "class", "tenant", weight, cost, "i0"), now)
        for number, (prompt, output) in enumerate(arrival.inferences):
            request_id = f"{name}/{number}"
            self._sizes[request_id] = (prompt, output)
            core.handle(
                ev.InferenceSubmitted(request_id, name, str(number), "i0", prompt, output, output),
                now,
            )
        core.handle(ev.ApplicationClosed(name), now)

    def _report(self, core: SchedulerCore, now: float) -> int:
        """Let an iteration pass and report it; return the service that it was."""
        before = self._served
        for running in self._running.values():
            running.made += 1
            self._served += running.prompt + running.made
        ended = {name: r for name, r in self._running.items() if r.made == r.output}
        for name in ended:
            del self._running[name]
        held = sum(r.prompt + r.made for r in self._running.values())
        actions = core.handle(
            ev.ReplicaPulled(
                "r0",
                ReplicaCapacity(self.kv_tokens, 1, self.seats),
                self.kv_tokens - held,
                tuple(
                    ev.LeaseProgress(name, r.prompt, r.made, running=True)
                    for name, r in self._running.items()
                ),
                tuple(
                    ev.LeaseFinished(name, r.prompt, r.made, Outcome.FINISHED)
                    for name, r in ended.items()
                ),
            ),
            now,
        )
        check(core)
        self._levels.append((before, core.order.fair_share.clock.virtual_time))
        for action in actions:
            if isinstance(action, Grant):
                self._running[action.lease_id] = _Running(*self._sizes[action.request_id])
                self._last_start[action.request_id.split("/")[0]] = self._served
            elif isinstance(action, EndApplication):
                self._final_tag[action.application_id] = action.virtual_finish_time
        core.handle(ev.PullAnswered("r0"), now)
        assert sum(r.prompt + r.made for r in self._running.values()) <= self.kv_tokens
        return self._served - before

    def _lag(self, name: str) -> int:
        """Return S(e) − S(f̄), f̄ taken at the start of the report in which V reached the tag."""
        tag = self._final_tag[name]
        reached = next((served for served, v in self._levels if v >= tag), self._served)
        return self._last_start[name] - reached
