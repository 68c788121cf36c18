"""Replicas with constant iteration times that drive a core, for tests of the fairness bound.

Every running inference gains one token per iteration, on all replicas at once. A replica reports at
the end of every `report_every`-th iteration; every `progress_every`-th report also contains the
progress of running leases. An application may have stages, each submitted `gap` iterations after
the last inference of the stage before; it is closed with its last submission. Admission is `peak`
with true lengths, so that nothing is swapped out.

All amounts are whole numbers and fractions, counted from the events alone. The tests compare the
core's lags with them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import EndApplication, Grant
from justitia_ray.core.entities import Outcome, ReplicaCapacity
from justitia_ray.core.invariants import check
from justitia_ray.core.lag.meter import LagMeter
from justitia_ray.cost import PrefillCost, kv_token_time
from tests.core_driver import PATIENT
from tests.exact import exact

ITERATION_S = 0.03
_LAST_ITERATION = 20_000
_CHECK_EVERY = 8
"""Number of iterations between two checks of all invariants."""

Sizes = tuple[tuple[int, int], ...]
"""(prompt tokens, output tokens) of each inference of a stage."""


def work_of(sizes: Sizes) -> int:
    """Return the KV token-time of inferences, in token·iterations."""
    return sum(int(kv_token_time(p, d)) for p, d in sizes)


@dataclass(frozen=True)
class Arrival:
    """Application of a property test, with its arrival iteration, stages and predictions."""

    iteration: int
    stages: tuple[Sizes, ...]
    weight: Fraction = Fraction(1)
    gap: int = 0
    """Iterations of tool time between two stages."""
    predicted: Fraction = Fraction(1)
    """Predicted cost as a multiple of the true cost."""
    overlaps: bool = False
    """Whether each stage begins when the first call of the previous stage ends."""
    predicted_output: int | None = None
    """Predicted output tokens of each inference; None predicts the true number."""
    expected: Fraction | None = None
    """Predicted remaining cost at each later stage, over the true one; None for no prediction."""
    tenant: str = "tenant"
    cached: Fraction = Fraction(0)
    """Share of each prompt that its replica finds in the prefix cache."""

    @property
    def cost(self) -> int:
        return sum(work_of(sizes) for sizes in self.stages)

    def found(self, prompt: int) -> int:
        """Return the tokens of a prompt that its replica finds in the prefix cache."""
        return int(prompt * self.cached)


def one_stage(iteration: int, sizes: Sizes, weight: Fraction = Fraction(1)) -> Arrival:
    return Arrival(iteration, (sizes,), weight)


@dataclass(frozen=True)
class Server:
    kv_tokens: int
    seats: int = 256
    report_every: int = 1
    """Number of iterations between two reports."""
    progress_every: int = 1
    """Every how many reports one contains progress; the others contain only ended inferences."""


@dataclass
class Outcomes:
    """Measurements of a simulated run, in token·iterations unless said otherwise."""

    ended: dict[str, EndApplication] = field(default_factory=dict)
    lag: dict[str, int] = field(default_factory=dict)
    """Lag of each application: service between the virtual finish time and the application's last
    start.
    """
    in_flight: int = 0
    """Largest remaining service of running inferences, computed from reported tokens."""
    report: int = 0
    """Largest service of one report."""
    passed: int = 0
    """Work that started while an application with an earlier virtual finish time waited."""
    finished: dict[str, int] = field(default_factory=dict)
    """Iteration in which the last inference ended."""
    jct: dict[str, int] = field(default_factory=dict)
    """Completion times of applications, in iterations."""

    @property
    def worst(self) -> int:
        return max(self.lag.values())


@dataclass
class _Running:
    lease_id: str
    prompt: int
    output: int
    found: int = 0
    prefill: int = 0
    """Cost of the computed prompt tokens; it is charged at the first output token."""
    made: int = 0
    reported: int = 0

    def service(self, made: int) -> int:
        """Return the service received after a number of output tokens."""
        return int(kv_token_time(self.prompt, made)) + (self.prefill if made else 0)

    @property
    def remaining(self) -> int:
        return self.service(self.output) - self.service(self.reported)


class Engine:
    """Simulated replicas that run applications until all have ended."""

    def __init__(
        self,
        servers: Sequence[Server],
        policy: str = "justitia",
        options: Mapping[str, object] | None = None,
        *,
        tell_truth: bool = False,
        meter: type[LagMeter] | None = LagMeter,
        prefill_cost: PrefillCost | None = None,
        caches: bool = False,
    ) -> None:
        self.core = SchedulerCore(
            policy, options, timeouts=PATIENT, meter=meter, prefill_cost=prefill_cost
        )
        self._prefill_cost = prefill_cost
        self._caches = caches or prefill_cost is not None
        self._servers = servers
        self._tell_truth = tell_truth
        self._running: list[dict[str, _Running]] = [{} for _ in servers]
        self._served = 0
        self._levels: list[tuple[int, float]] = []
        self._last_start: dict[str, int] = {}
        self._left: dict[str, list[Sizes]] = {}
        self._open: dict[tuple[str, int], int] = {}
        """Number of inferences of a stage that must end before the next stage is submitted."""
        self._stage_of: dict[str, tuple[str, int]] = {}
        self._due: list[tuple[int, str]] = []
        self._sizes: dict[str, tuple[int, int]] = {}
        self._now = 0
        self.outcomes = Outcomes()

    def run(self, arrivals: Mapping[str, Arrival] | Sequence[Arrival]) -> Outcomes:
        """Run the applications to their end; those without names are named a0, a1 and so on."""
        if not isinstance(arrivals, Mapping):
            arrivals = {f"a{number}": arrival for number, arrival in enumerate(arrivals)}
        self._arrivals = arrivals
        while len(self.outcomes.ended) < len(arrivals):
            assert self._now < _LAST_ITERATION, "it does not end"
            for number, server in enumerate(self._servers):
                if self._now % server.report_every == 0:
                    self._report(number, server)
            for name in [name for at, name in self._due if at <= self._now]:
                self._submit_stage(name)
            self._due = [(at, name) for at, name in self._due if at > self._now]
            for name, arrival in self._arrivals.items():
                if arrival.iteration == self._now:
                    self._arrive(name, arrival)
            for number in range(len(self._servers)):
                self._handle(ev.PullAnswered(str(number)))
            self._now += 1
            if self._now % _CHECK_EVERY == 0:
                check(self.core)
            for running in self._running:
                self._iterate(running)
        self.outcomes.lag = {name: self.late_by(name) for name in self.outcomes.ended}
        return self.outcomes

    def late_by(self, name: str, allowance: float = 0) -> int:
        """Return an application's lag: the service from its virtual finish time to its last start.

        `allowance` is added to the tag.
        """
        tag = self.outcomes.ended[name].virtual_finish_time + allowance
        reached = next((served for served, v in self._levels if v >= tag), self._served)
        return self._last_start[name] - reached

    def _handle(self, event: ev.Event) -> None:
        actions = self.core.handle(event, self._now * ITERATION_S)
        self.note_handled()
        for action in actions:
            if isinstance(action, Grant):
                self._start(action)
            elif isinstance(action, EndApplication):
                name = action.application_id
                self.outcomes.ended[name] = action
                self.outcomes.finished[name] = self._now
                self.outcomes.jct[name] = self._now - self._arrivals[name].iteration

    def note_handled(self) -> None:
        """Record the core's state after an event and before its actions."""

    def found_tokens(self, grant: Grant, prompt: int) -> int:
        """Return the tokens of a started prompt that its replica finds in the prefix cache."""
        return self._arrivals[grant.request_id.split("/")[0]].found(prompt)

    def held_tokens(self, running: Iterable[_Running]) -> int:
        """Return the KV tokens of running inferences; without common beginnings, their sum."""
        return sum(one.prompt + one.made for one in running)

    def _arrive(self, name: str, arrival: Arrival) -> None:
        self._handle(
            ev.ApplicationArrived(
                name,
                "class",
                arrival.tenant,
                exact(arrival.weight),
                exact(arrival.cost * arrival.predicted),
                "i0",
                true_kv_token_time=exact(arrival.cost) if self._tell_truth else None,
            )
        )
        self._left[name] = list(arrival.stages)
        self._submit_stage(name)

    def _prefill(self, prompt: int, found: int) -> int:
        cost = self._prefill_cost
        return 0 if cost is None else cost.of(prompt - found, prompt)

    def _submit_stage(self, name: str) -> None:
        arrival = self._arrivals[name]
        remaining = None
        if arrival.expected is not None and len(self._left[name]) < len(arrival.stages):
            remaining = exact(arrival.expected * sum(work_of(sizes) for sizes in self._left[name]))
        sizes = self._left[name].pop(0)
        stage = (name, len(self._left[name]))
        self._open[stage] = 1 if arrival.overlaps else len(sizes)
        for prompt, output in sizes:
            request_id = f"{name}/{len(self._sizes)}"
            self._sizes[request_id] = (prompt, output)
            self._stage_of[request_id] = stage
            predicted = arrival.predicted_output or output
            self._handle(
                ev.InferenceSubmitted(
                    request_id,
                    name,
                    request_id,
                    "i0",
                    prompt,
                    predicted,
                    output,
                    remaining_kv_token_time=remaining,
                )
            )
        if not self._left[name]:
            self._handle(ev.ApplicationClosed(name))

    def _start(self, grant: Grant) -> None:
        name = grant.request_id.split("/")[0]
        prompt, output = self._sizes[grant.request_id]
        found = self.found_tokens(grant, prompt)
        prefill = self._prefill(prompt, found)
        started = _Running(grant.lease_id, prompt, output, found, prefill)
        self._running[int(grant.replica_id)][grant.request_id] = started
        self._last_start[name] = self._served
        tags = self.core.ledger.fair_share
        applications = self.core.state.applications
        own = (tags.tag(name), applications[name].sequence)
        if any(
            (tags.tag(other.application_id), other.sequence) < own
            for other in applications.values()
            if other.waiting
        ):
            self.outcomes.passed += started.remaining
        remaining = sum(r.remaining for running in self._running for r in running.values())
        self.outcomes.in_flight = max(self.outcomes.in_flight, remaining)

    def _iterate(self, running: dict[str, _Running]) -> None:
        for request_id, inference in running.items():
            if inference.made == inference.output:
                continue
            inference.made += 1
            if inference.made == inference.output:
                name, left = stage = self._stage_of[request_id]
                self._open[stage] -= 1
                if left and not self._open[stage]:
                    self._due.append((self._now + self._arrivals[name].gap, name))

    def _report(self, number: int, server: Server) -> None:
        running = self._running[number]
        ended = {name: r for name, r in running.items() if r.made == r.output}
        is_whole = self._now // server.report_every % server.progress_every == 0
        before = self._served
        for inference in (running if is_whole else ended).values():
            self._served += inference.service(inference.made)
            self._served -= inference.service(inference.reported)
            inference.reported = inference.made
        for name in ended:
            del running[name]
        held = self.held_tokens(running.values())
        assert held <= server.kv_tokens
        self._handle(
            ev.ReplicaPulled(
                str(number),
                ReplicaCapacity(
                    server.kv_tokens,
                    1,
                    server.seats,
                    caches_prefixes=self._caches,
                ),
                server.kv_tokens - held,
                tuple(
                    ev.LeaseProgress(
                        r.lease_id,
                        r.prompt,
                        r.made,
                        running=True,
                        cached_tokens=r.found if r.made else None,
                    )
                    for r in running.values()
                )
                if is_whole
                else None,
                tuple(
                    ev.LeaseFinished(
                        r.lease_id, r.prompt, r.made, Outcome.FINISHED, cached_tokens=r.found
                    )
                    for r in ended.values()
                ),
            )
        )
        self._levels.append((before, self.core.ledger.fair_share.clock.virtual_time))
        self.outcomes.report = max(self.outcomes.report, self._served - before)
