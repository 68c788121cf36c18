"""A run: applications arrive, replicas iterate, the core decides; from one event to the next.

At each instant at which something happens, in this order (DESIGN.md, section 5): what iterations
brought, replica by replica: tokens, completions, then swaps for want of memory; the successors of
what completed; arrivals and submissions due; then, replica by replica, what comes back and what is
admitted. What arrives between two boundaries waits for the next boundary of any replica; one that
has nothing to do is always at a boundary.

Nothing happens at the boundaries between. So they are passed over, and what they brought is told in
one report at the next event. With costs that are predicted right the outcome is the same as with a
report for each iteration; a wrong prediction is then settled at that event.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence

from justitia_ray.core import events as ev
from justitia_ray.sim.gate import Gate
from justitia_ray.sim.inference_graph import InferenceGraph
from justitia_ray.sim.kv_memory import KvMemory
from justitia_ray.sim.link import CoreLink
from justitia_ray.sim.prefix_cache import PrefixCache
from justitia_ray.sim.results import RunResult
from justitia_ray.sim.sequence import Sequence as Running
from justitia_ray.sim.server import Server
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.timetable import Timetable
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference, check_sizes
from justitia_ray.units import ApplicationId, Seconds, Tokens

_STEPS_A_TELL = 1024


def simulate(
    applications: Sequence[WorkloadApplication],
    settings: RunSettings,
    on_progress: Callable[[int], None] = lambda ended: None,
) -> RunResult:
    """Return what one policy does with these applications; the same arguments return the same.

    Args:
        applications: Each as `WorkloadApplication.check` wants it, their ids unique.
        settings: Policy, engines, predictions.
        on_progress: Told how many applications have ended, now and then.

    Raises:
        ConfigError: If a setting is not allowed, or an inference exceeds a replica's KV memory.
    """
    check_sizes(applications, KvMemory(settings.engine).largest)
    return Simulation(applications, settings).run(on_progress)


class Simulation:
    """One run, to be made once."""

    def __init__(self, applications: Sequence[WorkloadApplication], settings: RunSettings) -> None:
        self._applications = applications
        self._settings = settings
        self._result = RunResult()
        self._is_exact = settings.report_interval_s == 0
        self._link = CoreLink(settings, self._result)
        self._core = self._link.core
        self._gate = Gate(self._link, settings)
        self._graph = InferenceGraph()
        self._servers = [Server(index, settings.engine) for index in range(settings.replicas)]
        self._prefixes = [PrefixCache(settings.engine) for _ in self._servers]
        self._reported_at = [0.0] * len(self._servers)
        self._looked_at: Seconds = 0.0
        """When all replicas have reported last."""
        self._changes = Timetable(len(self._servers))
        """When something happens on a replica by itself."""
        self._tries = Timetable(len(self._servers))
        """When a replica may be given something."""
        self._arrivals = deque(sorted(applications, key=lambda a: a.arrived_at_s))
        self._opened = 0
        """How many of the first of them are open before the boundary that they wait for."""
        self._dues: list[tuple[Seconds, int, WorkloadApplication, WorkloadInference]] = []
        """When what is submitted; then in the order in which that was known."""
        self._dues_known = 0
        self._rows: dict[tuple[str, str], Running] = {}
        self._kv_held: dict[ApplicationId, Tokens] = {}

    def run(self, on_progress: Callable[[int], None]) -> RunResult:
        """Run until everything has ended, and return what came of it."""
        result = self._result
        result.applications = [self._link.expect(a) for a in self._applications]
        now = 0.0
        steps = 0
        while (instant := self._next_instant()) is not None:
            now = instant
            self._step(now)
            steps += 1
            if steps % _STEPS_A_TELL == 0:
                on_progress(self._link.ended)
        self._link.finish(now)
        self._sum_up(now)
        return result

    def _next_instant(self) -> Seconds | None:
        woken_at, due = min(self._changes.next(), self._tries.next()), self._due_at()
        instant = woken_at if woken_at < due else min(woken_at, self._boundary_from(due))
        return None if instant == math.inf else instant

    def _due_at(self) -> Seconds:
        """Return when something comes next, or a policy lets somebody go on."""
        deadline = self._core.next_deadline()
        own = math.inf if deadline is None else deadline
        return min(own, self._next_arrival(), self._next_due())

    def _boundary_from(self, instant: Seconds) -> Seconds:
        """Return the next boundary of any replica; one with nothing to do is at one."""
        if instant == math.inf or not self._is_exact:
            return instant
        return min(server.next_boundary(instant) for server in self._servers)

    def _step(self, now: Seconds) -> None:
        woken = [self._servers[index] for index in self._changes.take(now)]
        trying = [self._servers[index] for index in self._tries.take(now)]
        self._gate.time_has_come(trying)
        seen = self._gate.standing
        if woken or self._due_at() <= now:
            self._take_in(woken, now)
        elif self._has_reason(trying):
            self._report([], now)
        else:
            return
        self._gate.look()
        changed, tried = {server.index for server in woken}, {server.index for server in trying}
        for server in self._at_boundary({s.index for s in [*woken, *trying]}):
            if server.swapped or self._gate.is_worth_asking(server):
                (changed if self._let_in(server, now) else tried).add(server.index)
        for index in changed:
            if self._servers[index].at == now:
                self._servers[index].start_iteration()
        self._schedule(changed, tried, now, others=self._gate.standing != seen)
        if self._settings.sample_kv:
            self._sample(now)

    def _take_in(self, woken: list[Server], now: Seconds) -> None:
        """Take in what iterations brought, what follows on it, and what is due."""
        if self._core.order.options.clock == "nominal":
            self._open_on_time(now)
        finished = self._report(woken, now)
        for server in woken:
            server.swap_out(self._core.place)
        for sequence in finished:
            self._follow(sequence, now)
        self._take_dues(now)
        self._link.withdraw_idle(now)

    # --- what iterations brought

    def _report(self, woken: list[Server], now: Seconds) -> list[Running]:
        """Tell the core what replicas have done: what ended, and from time to time all of it."""
        finished: list[Running] = []
        indices = {server.index for server in woken}
        looks_at_all = now - self._looked_at >= self._settings.report_interval_s
        if looks_at_all:
            self._looked_at = now
        for server in self._servers if looks_at_all else woken:
            wakes = server.index in indices
            if not wakes and not server.running:
                continue
            server.advance(now)
            if server.at > now:
                continue  # in the middle of a prefill
            ended = server.finish() if wakes else []
            self._tell(server, ended, now, whole=looks_at_all)
            finished += ended
        return finished

    def _tell(self, server: Server, ended: list[Running], now: Seconds, *, whole: bool) -> None:
        self._reported_at[server.index] = now
        self._link.report(server, ended, now, whole=whole)
        for sequence in ended:
            sequence.result.finished_at_s = now
            self._prefixes[server.index].keep(sequence)

    # --- what comes

    def _follow(self, sequence: Running, now: Seconds) -> None:
        row = sequence.result
        for application, inference in self._graph.finish(row.application_id, row.inference_id):
            self._submit_after(now, application, inference, now)

    def _take_dues(self, now: Seconds) -> None:
        if (deadline := self._core.next_deadline()) is not None and deadline <= now:
            self._link.handle(ev.DeadlinePassed(), now)
        while (arrival_at := self._next_arrival()) <= now or self._next_due() <= now:
            if arrival_at <= self._next_due():
                self._arrive(now)
            else:
                due_at, _, application, inference = heapq.heappop(self._dues)
                self._link.submit(application, inference, due_at, now)

    def _arrive(self, now: Seconds) -> None:
        application = self._arrivals.popleft()
        if self._opened:
            self._opened -= 1
        else:
            self._link.arrive(application, now)
        for root in self._graph.arrive(application):
            self._submit_after(application.arrived_at_s, application, root, now)

    def _next_arrival(self) -> Seconds:
        return self._arrivals[0].arrived_at_s if self._arrivals else math.inf

    def _next_due(self) -> Seconds:
        return self._dues[0][0] if self._dues else math.inf

    def _open_on_time(self, now: Seconds) -> None:
        """Open applications at their instants: the nominal clock goes by those."""
        for application in self._arrivals:
            if application.arrived_at_s > now:
                return
            self._link.arrive(application, application.arrived_at_s)
            self._opened += 1

    def _submit_after(
        self,
        since: Seconds,
        application: WorkloadApplication,
        inference: WorkloadInference,
        now: Seconds,
    ) -> None:
        if inference.delay_s:
            self._dues_known += 1
            due_at = since + inference.delay_s
            heapq.heappush(self._dues, (due_at, self._dues_known, application, inference))
        else:
            self._link.submit(application, inference, since, now)

    # --- what is let in

    def _at_boundary(self, woken: set[int]) -> list[Server]:
        """Return the replicas that may be at a boundary.

        Where reports may be late, one that runs something and has not woken is left to wake at this
        same instant, if its boundary is just now: to ask each would cost more than it tells.
        """
        if self._is_exact:
            return self._servers
        return [s for s in self._servers if not s.running or s.index in woken]

    def _let_in(self, server: Server, now: Seconds) -> bool:
        """Let run what comes back or is admitted, at a boundary; return whether anything does."""
        if server.next_boundary(now) != now:
            return False
        server.advance(now)
        before = len(server.running)
        server.swap_in(self._core.place)
        admits_now = not server.swapped and server.next_admission(now) == now
        if admits_now and self._gate.is_worth_asking(server):
            admitted = self._admit(server, now)
            self._gate.look()
            if not admitted or self._settings.engine.prefill != "separate":
                self._gate.refused(server)
        return len(server.running) > before

    def _admit(self, server: Server, now: Seconds) -> bool:
        if self._is_exact and self._reported_at[server.index] < now:
            self._tell(server, [], now, whole=True)
        prefixes = self._prefixes[server.index]
        admitted = self._link.ask(server, now)
        for sequence, follows in admitted:
            row = sequence.result
            self._rows[row.application_id, row.inference_id] = sequence
            if follows:
                free = self._settings.engine.kv_tokens - server.context_tokens
                prefixes.use(sequence, free)
            server.admit(sequence)
        return bool(admitted)

    # --- when to look again

    def _has_reason(self, trying: list[Server]) -> bool:
        """Return whether any of these may be given something, or let something come back."""
        return bool(self._gate.with_reason(trying)) or any(server.swapped for server in trying)

    def _schedule(self, changed: set[int], tried: set[int], now: Seconds, *, others: bool) -> None:
        """Set when to look at replicas again: those that changed or tried; all if the queue did."""
        later = math.nextafter(now, math.inf)
        for server in self._gate.with_reason(self._servers) if others else ():
            if server.index not in changed and server.index not in tried:
                since = later if self._is_exact else now
                self._tries.set(server.index, self._gate.next_try(server, since))
        for index in changed:
            self._changes.set(index, self._servers[index].next_change())
        for index in changed | tried:
            self._tries.set(index, self._next_try(self._servers[index], later))

    def _next_try(self, server: Server, later: Seconds) -> Seconds | None:
        if not server.swapped:
            return self._gate.next_try(server, later)
        # What comes back first did not fit; another may come first when service moves the order.
        return (
            server.next_boundary(later) if self._gate.order_moves and server.may_swap_in() else None
        )

    # --- what is told in the end

    def _sample(self, now: Seconds) -> None:
        held: dict[ApplicationId, Tokens] = {}
        for server in self._servers:
            for sequence in server.running.values():
                name = sequence.application_id
                held[name] = held.get(name, 0) + sequence.context_by(server.iteration)
        for name in dict.fromkeys([*self._kv_held, *held]):
            if held.get(name, 0) != self._kv_held.get(name, 0):
                self._result.kv_samples.append((now, name, held.get(name, 0)))
        self._kv_held = held

    def _sum_up(self, end_at: Seconds) -> None:
        result = self._result
        result.inferences = [
            self._rows[a.application_id, i.inference_id].result
            for a in self._applications
            for i in a.inferences
        ]
        result.preemptions = sum(row.preemptions for row in result.inferences)
        if self._applications:
            result.makespan_s = end_at - min(a.arrived_at_s for a in self._applications)
        held = sum(server.kv_token_seconds for server in self._servers)
        room = self._settings.engine.kv_tokens * len(self._servers) * result.makespan_s
        result.kv_utilization = held / room if room else None
