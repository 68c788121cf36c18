"""A replica of constant iterations that drives a core with applications of several tenants.

Every running inference gains a token an iteration; predictions are true; every inference of an
application is submitted on its arrival, and the application is closed. Reports come at the end of
each iteration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from justitia_ray.core import SchedulerCore, Timeouts
from justitia_ray.core import events as ev
from justitia_ray.core.actions import EndApplication, Grant
from justitia_ray.core.entities import Outcome, ReplicaCapacity
from justitia_ray.core.invariants import check
from justitia_ray.cost import kv_token_time
from tests.exact import exact

_NEVER_S = 1e9


@dataclass(frozen=True)
class Arrival:
    """An application: its tenant, when it comes, (prompt, output) tokens of its inferences."""

    tenant: str
    iteration: int
    inferences: tuple[tuple[int, int], ...]
    weight: int = 1


@dataclass
class Run:
    """What a run showed, by application; work in token·iterations."""

    finished: dict[str, int] = field(default_factory=dict)
    """Iteration of the last end of an inference."""
    last_start: dict[str, int] = field(default_factory=dict)
    """Served work at the last start of an inference: S(e)."""
    final_tag: dict[str, float] = field(default_factory=dict)
    levels: list[tuple[int, float]] = field(default_factory=list)
    """After each report: served work before it, V after it."""
    served: int = 0
    in_flight: int = 0
    """I: largest remaining work in flight."""
    report: int = 0
    """Largest service of one report."""

    def lag(self, name: str) -> int:
        """Return S(e) − S(f̄), f̄ taken at the start of the report in which V reached the tag."""
        tag = self.final_tag[name]
        reached = next((served for served, v in self.levels if v >= tag), self.served)
        return self.last_start[name] - reached

    def worst_lag(self) -> int:
        """Return the largest lag of all."""
        return max(self.lag(name) for name in self.final_tag)


class _Replica:
    def __init__(self, kv_tokens: int, seats: int) -> None:
        self.capacity = ReplicaCapacity(kv_tokens, 1, seats)
        self.sizes: dict[str, tuple[int, int]] = {}
        self.running: dict[str, tuple[str, int, int, int]] = {}
        """Lease to application, prompt, output, tokens made."""

    def iterate(self, run: Run, iteration: int) -> ev.ReplicaPulled:
        """Let every running inference make a token; return the report of it."""
        before, finished = run.served, []
        for lease, (name, prompt, output, made) in list(self.running.items()):
            run.served += prompt + made + 1
            self.running[lease] = (name, prompt, output, made + 1)
            if made + 1 == output:
                del self.running[lease]
                finished.append(ev.LeaseFinished(lease, prompt, output, Outcome.FINISHED))
                run.finished[name] = iteration
        run.report = max(run.report, run.served - before)
        held = sum(prompt + made for _, prompt, _, made in self.running.values())
        progress = tuple(
            ev.LeaseProgress(lease, prompt, made, running=True)
            for lease, (_, prompt, _, made) in self.running.items()
        )
        free = self.capacity.kv_tokens - held
        return ev.ReplicaPulled("r0", self.capacity, free, progress, tuple(finished))

    def remaining(self) -> int:
        """Return the remaining work in flight."""
        return sum(
            int(kv_token_time(prompt, output) - kv_token_time(prompt, made))
            for _, prompt, output, made in self.running.values()
        )


def run_tenants(
    arrivals: Mapping[str, Arrival] | Sequence[Arrival],
    kv_tokens: int,
    seats: int,
    fairness: str = "tenant",
    policy: str = "justitia",
) -> Run:
    """Run applications to their end on one replica, under `admission: peak`."""
    named = arrivals if isinstance(arrivals, Mapping) else _numbered(arrivals)
    timeouts = Timeouts(_NEVER_S, _NEVER_S, _NEVER_S, _NEVER_S, _NEVER_S)
    core = SchedulerCore(policy, {"fairness": fairness}, timeouts=timeouts)
    run, replica, iteration = Run(), _Replica(kv_tokens, seats), 0
    while len(run.final_tag) < len(named):
        for name, arrival in named.items():
            if arrival.iteration == iteration:
                _arrive(core, replica, name, arrival, iteration)
        before = run.served
        actions = core.handle(replica.iterate(run, iteration), iteration)
        check(core)
        run.levels.append((before, core.order.fair_share.clock.virtual_time))
        for action in actions:
            if isinstance(action, Grant):
                name = action.request_id.split("/")[0]
                replica.running[action.lease_id] = (name, *replica.sizes[action.request_id], 0)
                run.last_start[name] = run.served
            elif isinstance(action, EndApplication):
                run.final_tag[action.application_id] = action.virtual_finish_time
        core.handle(ev.PullAnswered("r0"), iteration)
        run.in_flight = max(run.in_flight, replica.remaining())
        iteration += 1
    return run


def _numbered(arrivals: Sequence[Arrival]) -> dict[str, Arrival]:
    return {f"a{number}": arrival for number, arrival in enumerate(arrivals)}


def _arrive(
    core: SchedulerCore, replica: _Replica, name: str, arrival: Arrival, now: float
) -> None:
    cost = exact(sum(int(kv_token_time(p, d)) for p, d in arrival.inferences))
    weight = exact(arrival.weight)
    core.handle(ev.ApplicationArrived(name, "class", arrival.tenant, weight, cost, "i0"), now)
    for number, (prompt, output) in enumerate(arrival.inferences):
        request_id = f"{name}/{number}"
        replica.sizes[request_id] = (prompt, output)
        core.handle(
            ev.InferenceSubmitted(request_id, name, str(number), "i0", prompt, output, output), now
        )
    core.handle(ev.ApplicationClosed(name), now)
