"""A simulated run by discrete events: applications arrive, replicas iterate, the core decides.

Order of the steps at each instant with an event: results of the iterations, replica by replica
(tokens, completions, then swaps for lack of memory); the successors of completed inferences;
arrivals and submissions that are due; then, replica by replica, resumed and admitted inferences. An
arrival between two boundaries waits for the next boundary of any replica; an idle replica is always
at a boundary.

Boundaries without an event are skipped, and their results are sent in one report at the next event.
With exact cost predictions the outcome is the same as with a report per iteration; a wrong
prediction is corrected at that event.
"""

import math
from collections.abc import Callable, Sequence

from justitia_ray.core import events as ev
from justitia_ray.core.queue import LazyHeap
from justitia_ray.sim.core_link import CoreLink
from justitia_ray.sim.gate import Gate
from justitia_ray.sim.kv_memory import KvMemory, PrefixCache
from justitia_ray.sim.kv_memory import SimulatedSequence as Running
from justitia_ray.sim.results import InferenceResult, RunResult
from justitia_ray.sim.server import Server
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.submissions import FrontEnd, Submissions
from justitia_ray.sim.workload import WorkloadApplication, check_sizes
from justitia_ray.units import ApplicationId, InferenceId, Seconds, Tokens


class ReplicaTimetable:
    def __init__(self, replicas: int) -> None:
        self._names = [str(index) for index in range(replicas)]
        self._instants = LazyHeap()

    def set(self, index: int, at: Seconds | None) -> None:
        """Set the time at which a replica is processed next; None removes it."""
        if at is None:
            self._instants.drop(self._names[index])
        else:
            self._instants.put(self._names[index], (at, index))

    def clear(self) -> None:
        self._instants = LazyHeap()

    def has(self, index: int) -> bool:
        return self._names[index] in self._instants

    def next(self) -> Seconds:
        """Return the earliest time; inf without one."""
        name = self._instants.first()
        return math.inf if name is None else self._instants.key(name)[0]

    def take(self, now: Seconds) -> list[int]:
        """Remove and return the replicas that are due, by index."""
        taken = []
        while (name := self._instants.first()) is not None and self._instants.key(name)[0] <= now:
            self._instants.drop(name)
            taken.append(int(name))
        return sorted(taken)


_STEPS_PER_PROGRESS = 1024


def simulate(
    applications: Sequence[WorkloadApplication],
    settings: RunSettings,
    on_progress: Callable[[int], None] = lambda ended: None,
) -> RunResult:
    """Simulate a policy on applications; equal arguments give equal results.

    Args:
        applications: Applications that pass `checked_application`, with unique ids.
        settings: Policy, engines, predictions.
        on_progress: Called from time to time with the number of ended applications.

    Raises:
        ConfigError: If a setting is not allowed, or an inference exceeds a replica's KV memory.
    """
    check_sizes(applications, KvMemory(settings.engine).largest)
    return Simulation(applications, settings).run(on_progress)


class Simulation:
    """A simulated run of a policy on a workload; it can be run once."""

    def __init__(self, applications: Sequence[WorkloadApplication], settings: RunSettings) -> None:
        self._applications = applications
        self._settings = settings
        self._result = RunResult()
        self._is_exact = settings.report_interval_s == 0
        self._link = CoreLink(settings, self._result)
        self._core = self._link.core
        self._gate = Gate(self._link, settings)
        self._front_end = FrontEnd(settings.front_end_s)
        self._submissions = Submissions(applications, self._link, self._front_end)
        self._servers = [
            Server(index, settings.engine, settings.dispatch_s)
            for index in range(settings.replicas)
        ]
        self._prefixes = [PrefixCache(settings.engine) for _ in self._servers]
        self._idle = set(range(len(self._servers)))
        self._looked_at: Seconds = 0.0
        self._changes = ReplicaTimetable(len(self._servers))
        self._tries = ReplicaTimetable(len(self._servers))
        self._seen_at: Seconds = -1.0
        self._seen_now: set[int] = set()
        self._due_at: Seconds = 0.0
        self._passed = 0
        self._rows: dict[tuple[ApplicationId, InferenceId], InferenceResult] = {}
        self._kv_held: dict[ApplicationId, Tokens] = {}

    def run(self, on_progress: Callable[[int], None]) -> RunResult:
        result = self._result
        result.applications = [self._link.expect(a) for a in self._applications]
        now = 0.0
        steps = 0
        self._due_at = self._next_step_due_at()
        while (instant := self._next_event_at()) is not None:
            now = instant
            self._step(now)
            steps += 1
            if steps % _STEPS_PER_PROGRESS == 0:
                on_progress(self._link.ended)
        self._link.finish(now)
        self._new_result()
        return result

    def _next_event_at(self) -> Seconds | None:
        woken_at, due_at = min(self._changes.next(), self._tries.next()), self._due_at
        instant = woken_at if woken_at < due_at else min(woken_at, self._next_boundary(due_at))
        return None if instant == math.inf else instant

    def _next_step_due_at(self) -> Seconds:
        deadline = self._core.next_deadline()
        coming_at = self._submissions.next_at()
        return coming_at if deadline is None else min(deadline, coming_at)

    def _next_boundary(self, instant: Seconds) -> Seconds:
        """Return the earliest time at which an iteration of any replica ends.

        An idle replica is at a boundary at any time.
        """
        if instant == math.inf or not self._is_exact:
            return instant
        return min(server.next_boundary(instant) for server in self._servers)

    def _step(self, now: Seconds) -> None:
        trying = [self._servers[index] for index in self._tries.take(now)]
        self._gate.forget_refusals(trying)
        seen = self._gate.standing
        woken: list[Server] = []
        if self._due_at <= now or self._changes.next() <= now:
            woken = [self._servers[index] for index in self._changes.take(now)]
            self._gate.forget_refusals(woken)
            self._update_and_submit(woken, now)
        elif any(self._gate.may_get_work(server) or server.swapped for server in trying):
            self._report([], now)
        else:
            return
        self._gate.look()
        changed, tried = {server.index for server in woken}, {server.index for server in trying}
        for server in self._replicas_at_boundary(changed | tried):
            if server.swapped or self._gate.is_worth_asking(server):
                (changed if self._resume_or_admit(server, now) else tried).add(server.index)
        for index in changed:
            if self._servers[index].at == now:
                self._servers[index].start_iteration()
        changed |= self._delay_engines(now)
        self._set_next_times(changed, tried, now, others=self._gate.standing != seen)
        self._due_at = self._next_step_due_at()
        if self._settings.sample_kv:
            self._sample_held_kv_tokens(now)

    def _update_and_submit(self, woken: list[Server], now: Seconds) -> None:
        """Report ended inferences to the scheduler core, and submit inferences that are due."""
        if self._core.ledger.options.clock == "nominal":
            self._submissions.open_on_time(now)
        finished = self._report(woken, now)
        for server in woken:
            self._passed += server.receive(now)
            server.swap_out(self._core.place)
        for sequence in finished:
            self._submissions.submit_successors(sequence.result, now)
        if (deadline := self._core.next_deadline()) is not None and deadline <= now:
            self._link.handle(ev.DeadlinePassed(), now)
        self._submissions.submit_all_due(now)
        self._link.withdraw_idle(now)

    def _report(self, woken: list[Server], now: Seconds) -> list[Running]:
        """Report ended inferences to the scheduler core, and at intervals all progress."""
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
                continue  # A replica that computes a prompt ends no iteration now.
            ended = server.finish() if wakes else []
            if ended or looks_at_all:
                self._link.report(server, ended, now, whole=looks_at_all)
            for sequence in ended:
                sequence.result.finished_at_s = now
                self._prefixes[server.index].keep_context(sequence)
            finished += ended
        self._passed += len(finished)
        return finished

    def _delay_engines(self, now: Seconds) -> set[int]:
        """Delay engines, because calls that arrive or end take time of their CPU.

        Return the delayed replicas.
        """
        by_s, self._passed = self._passed * self._settings.hold_up_s, 0
        if not by_s or not all(server.running for server in self._servers):
            return set()
        for server in self._servers:
            server.advance(now)
            server.lengthen_iteration(by_s)
        return set(range(len(self._servers)))

    def _replicas_at_boundary(self, woken: set[int]) -> list[Server]:
        """Return the replicas that may have just ended an iteration.

        With delayed reports, a busy replica that has not woken is left out even if its boundary is
        now: it wakes at this time anyway, and checking each replica would cost more than it gains.
        """
        if self._is_exact:
            return self._servers
        return [self._servers[index] for index in sorted(self._idle | woken)]

    def _resume_or_admit(self, server: Server, now: Seconds) -> bool:
        """Start waiting inferences on a replica, swapped-out ones first."""
        server.advance(now)
        if server.at != now:
            return False
        before = len(server.running)
        admitted = False
        server.swap_in(self._core.place)
        if (
            not server.swapped
            and server.can_start_inferences()
            and self._gate.is_worth_asking(server)
        ):
            admitted = self._request_work(server, now)
            self._gate.look()
            if not admitted or self._settings.engine.prefill != "separate":
                self._gate.refused(server)
        return admitted or len(server.running) > before

    def _request_work(self, server: Server, now: Seconds) -> bool:
        return self._send_granted(server, self._link.ask(server, now), now)

    def _send_granted(self, server: Server, admitted: list[Running], now: Seconds) -> bool:
        """Send the granted inferences to a replica; return whether there were any."""
        prefixes = self._prefixes[server.index]
        for sequence in admitted:
            row = sequence.result
            self._rows[row.application_id, row.inference_id] = row
            if sequence.follows:
                free = self._settings.engine.kv_tokens - server.context_tokens
                prefixes.use_prefix(sequence, free)
            server.send(sequence, now)
        self._passed += server.receive(now)
        return bool(admitted)

    def _set_next_times(
        self, changed: set[int], tried: set[int], now: Seconds, *, others: bool
    ) -> None:
        later = math.nextafter(now, math.inf)
        if now > self._seen_at:
            self._seen_at, self._seen_now = now, set()
        self._seen_now |= changed | tried
        for index in changed:
            server = self._servers[index]
            self._changes.set(index, server.next_change())
            self._gate.record_kv_load(server)
            (self._idle.discard if server.running else self._idle.add)(index)
        if not self._is_exact and self._gate.standing[0] is None:
            self._tries.clear()
            return
        for index in changed | tried:
            self._tries.set(index, self._next_work_request_at(self._servers[index], later))
        for server in self._gate.replicas_to_ask(self._servers) if others else ():
            if server.index in changed or server.index in tried:
                continue
            stays = self._gate.tries_stay and server.index not in self._seen_now
            if not (stays and self._tries.has(server.index)):
                since = later if self._is_exact else now
                self._tries.set(server.index, self._gate.next_work_request_at(server, since))

    def _next_work_request_at(self, server: Server, later: Seconds) -> Seconds | None:
        if not server.swapped:
            return self._gate.next_work_request_at(server, later)
        # Service may change the order, and a smaller swapped-out sequence may then fit.
        return (
            server.next_boundary(later) if self._gate.order_moves and server.may_swap_in() else None
        )

    def _sample_held_kv_tokens(self, now: Seconds) -> None:
        held: dict[ApplicationId, Tokens] = {}
        for server in self._servers:
            for sequence in server.running.values():
                name = sequence.application_id
                held[name] = held.get(name, 0) + sequence.context_tokens_after(server.iteration)
        for name in dict.fromkeys([*self._kv_held, *held]):
            if held.get(name, 0) != self._kv_held.get(name, 0):
                self._result.kv_samples.append((now, name, held.get(name, 0)))
        self._kv_held = held

    def _new_result(self) -> None:
        result = self._result
        result.inferences = [
            self._rows[a.application_id, i.inference_id]
            for a in self._applications
            for i in a.inferences
        ]
        result.front_end_s = self._front_end.mean_s
        result.preemptions = sum(row.preemptions for row in result.inferences)
        if self._applications:
            first_at = min(a.arrived_at_s for a in self._applications)
            ends = (a.finished_at_s for a in result.applications if a.finished_at_s is not None)
            result.makespan_s = max(ends, default=first_at) - first_at
        held = sum(server.kv_token_seconds for server in self._servers)
        room = self._settings.engine.kv_tokens * len(self._servers) * result.makespan_s
        result.kv_utilization = held / room if room else None
