"""Connects the simulator with the core: sends arrivals, inferences and reports; reads grants."""

from bisect import bisect_left
from collections.abc import Iterable

from justitia_ray.core import SchedulerCore, Timeouts
from justitia_ray.core import events as ev
from justitia_ray.core.actions import EndApplication, Grant
from justitia_ray.core.entities import Inference, Outcome, ReplicaCapacity
from justitia_ray.core.lag.meter import LagMeter
from justitia_ray.core.policies import policy_path
from justitia_ray.core.queue import LazyHeap
from justitia_ray.sim.kv_memory import SimulatedSequence
from justitia_ray.sim.predictions import predictions_of
from justitia_ray.sim.recognition import CONVERSATION, IDLE_S, Recognition
from justitia_ray.sim.results import (
    ApplicationResult,
    InferenceResult,
    Lateness,
    RunResult,
    row_on_arrival,
)
from justitia_ray.sim.server import Server
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import ApplicationId, RequestId, Seconds, Tokens, VirtualTime


class GpsHistory:
    """Records how virtual time V rose over simulated time.

    V is linear between reports, and constant while no inference runs.
    """

    def __init__(self) -> None:
        self._reached: list[VirtualTime] = []
        self._rose: list[tuple[VirtualTime, Seconds, Seconds]] = []
        self._last: tuple[VirtualTime, Seconds] = (0.0, 0.0)

    def record(self, virtual_time: VirtualTime, now: Seconds) -> None:
        before, since = self._last
        if virtual_time > before:
            self._reached.append(virtual_time)
            self._rose.append((before, since, now))
        self._last = (virtual_time, now)

    def time_of_virtual_finish(self, tag: VirtualTime, end_at: Seconds) -> Seconds:
        """Return when virtual time V reached the virtual finish time of an application."""
        index = bisect_left(self._reached, tag)
        if index == len(self._reached):
            return end_at
        before, since, until = self._rose[index]
        share = (tag - before) / (self._reached[index] - before)
        return since + max(0.0, share) * (until - since)


_NEVER = float("inf")
_INGRESS = "simulation"
_CHANGES = (ev.InferenceSubmitted, ev.DeadlinePassed)


class CoreLink:
    """Drives a `SchedulerCore` in a simulation and writes its decisions into the result."""

    def __init__(self, settings: RunSettings, result: RunResult) -> None:
        """Create a scheduler core without timeouts, and register the simulated replicas.

        Raises:
            ConfigError: If the policy, an option, the prediction or the recognition mode is not
                allowed.
        """
        self._engine = settings.engine
        self._waiting_prompts = LazyHeap()
        """Waiting inferences, ordered by prompt length."""
        self.ended = 0
        """Number of applications that have ended."""
        self.changes = 0
        self._result = result
        self._predictions = predictions_of(settings)
        self._recognition = Recognition(settings.recognised)
        self.core = SchedulerCore(
            policy_path(settings.policy),
            settings.policy_options,
            settings.engine.admission,
            Timeouts(_NEVER, _NEVER, _NEVER, _NEVER, _NEVER),
            tenants=settings.tenants,
            meter=LagMeter,
            prefill_cost=settings.engine.prefill_cost if settings.with_prefill else None,
        )
        self._applications: dict[ApplicationId, ApplicationResult] = {}
        self._to_finish: dict[ApplicationId, int] = {}
        """Number of unfinished inferences of each application of the workload."""
        self._to_submit: dict[ApplicationId, int] = {}
        self._tags: dict[ApplicationId, VirtualTime] = {}
        self._gps = GpsHistory()
        self._requests: dict[RequestId, tuple[WorkloadApplication, WorkloadInference, Seconds]] = {}
        capacity = ReplicaCapacity(
            settings.engine.kv_tokens, settings.engine.block_size, settings.engine.max_num_seqs
        )
        self._capacity = capacity
        for index in range(settings.replicas):
            self.handle(ev.ReplicaPulled(str(index), capacity, capacity.kv_tokens), 0.0)
            self.handle(ev.PullAnswered(str(index)), 0.0)

    def enter(self, server: Server, now: Seconds) -> list[SimulatedSequence]:
        """Register a replica; return the sequences that it starts at once."""
        kv_tokens = self._capacity.kv_tokens
        grants = self.handle(ev.ReplicaPulled(server.name, self._capacity, kv_tokens), now)
        self.handle(ev.PullAnswered(server.name), now)
        self.changes += 1
        return [self._sequence_of_grant(grant, server, now) for grant in grants]

    def drain(self, server: Server, now: Seconds) -> None:
        """Report that a replica drains and accepts no more work."""
        held = self.core.state.replicas[server.name].context_tokens
        free = max(0, self._capacity.kv_tokens - held)
        drains = ev.ReplicaPulled(server.name, self._capacity, free, progress=None, draining=True)
        self.handle(drains, now)
        self.handle(ev.PullAnswered(server.name), now)

    def handle(self, event: ev.Event, now: Seconds) -> list[Grant]:
        """Send an event to the scheduler core; return the granted leases."""
        grants = []
        self._result.decisions += 1
        self.changes += isinstance(event, _CHANGES)
        for action in self.core.handle(event, now):
            if isinstance(action, Grant):
                grants.append(action)
            elif isinstance(action, EndApplication):
                self._record_end(action)
        return grants

    def arrive(self, application: WorkloadApplication, now: Seconds) -> None:
        """Open an application, unless the scheduler recognises it only by its inferences."""
        if self._recognition.is_told:
            self._open_application(application, self._applications[application.application_id], now)

    def expect(self, application: WorkloadApplication) -> ApplicationResult:
        """Return the row of an application in the results, before it arrives."""
        row = row_on_arrival(application, application.arrived_at_s, Outcome.EXPIRED)
        row.kv_token_time = application.cost()
        self._applications[application.application_id] = row
        self._to_finish[application.application_id] = len(application.inferences)
        self._recognition.expect(application)
        return row

    def submit(
        self,
        application: WorkloadApplication,
        inference: WorkloadInference,
        due_at: Seconds,
        now: Seconds,
    ) -> None:
        """Submit an inference; close the application after its last one."""
        served = self._recognition.serving_application(application, inference)
        name = served.application_id
        if name not in self._to_submit:
            self._open_application(served, self._applications[application.application_id], now)
        request_id = f"{application.application_id}/{inference.inference_id}"
        self._requests[request_id] = (application, inference, due_at)
        most = self._engine.kv_tokens - inference.prompt_tokens
        foreseen = self._predictions.predict_inference(served, inference, most)
        self.handle(
            ev.InferenceSubmitted(
                request_id,
                name,
                inference.inference_id,
                _INGRESS,
                self._kv_of_prompt(inference),
                foreseen.output_tokens,
                most,
                true_output_tokens=inference.output_tokens,
                stage=foreseen.stage,
                remaining_kv_token_time=foreseen.remaining_kv_token_time,
                expected_stages=foreseen.expected_stages,
            ),
            now,
        )
        self._waiting_prompts.put(request_id, (self._kv_of_prompt(inference),))
        self._to_submit[name] -= 1
        if not self._to_submit[name] and self._recognition.knows_the_last:
            del self._to_submit[name]
            self.handle(ev.ApplicationClosed(name), now)
            if self._recognition.is_told:
                self._tags[name] = self.core.lags.tag(name)

    def report(
        self, server: Server, finished: list[SimulatedSequence], now: Seconds, *, whole: bool
    ) -> None:
        """Report a replica's ended inferences, and if `whole` the progress of the running ones."""
        last = tuple(
            ev.LeaseFinished(
                s.lease_id,
                s.prompt_tokens,
                s.made,
                Outcome.FINISHED,
                recomputed_tokens=s.recomputed_tokens,
            )
            for s in finished
        )
        for sequence in finished:
            row = sequence.result
            served_id = self._recognition.serving_application_id(
                row.application_id, row.inference_id
            )
            self._predictions.finish_inference(served_id, row.inference_id)
            self._count_finished(row.application_id, now)
        self.changes += bool(finished)
        progress = tuple(server.progress()) if whole else ()
        self.handle(ev.ReplicaReported(server.name, progress, last), now)
        self._gps.record(self._virtual_time, now)

    def withdraw_idle(self, now: Seconds) -> None:
        """Report that idle applications submit no more inferences at this time."""
        # Any replica may send this report, which is empty.
        replica_id = next(iter(self.core.state.replicas), None)
        if replica_id is not None and self.core.applications.settled_since_report:
            self.handle(ev.ReplicaReported(replica_id, withdraws=True), now)
            self._gps.record(self._virtual_time, now)

    def ask(self, server: Server, now: Seconds) -> list[SimulatedSequence]:
        """Request work for a replica; return the sequences that it starts.

        Inferences are requested one at a time in two cases: if KV is reserved for each client,
        because the next inference in order may be a client's first; and if prompts are computed
        alone, because each prompt then gets a first token before the next iteration, which the core
        does not predict.
        """
        engine, admitted = self._engine, list[SimulatedSequence]()
        alone = engine.prefill == "separate"
        one_by_one = alone or engine.reserved_tokens_per_client > 0
        clients = [s.client for s in server.running.values()] if one_by_one else []
        grown = self._unreported_growth(server)
        if not self.core.state.leases:
            self._gps.record(self._virtual_time, now)  # V is as at the last report
        left = engine.max_batched_tokens if alone else None
        while (first := self.first()) is not None:
            if left is not None and not admitted:
                left = max(left, first.prompt_tokens)
            most = None
            if one_by_one:
                clients.append(self.core.state.applications[first.application_id].tenant)
                most = first.prompt_tokens if left is None else min(left, first.prompt_tokens)
            asks = ev.ReplicaReported(
                server.name,
                asks=True,
                most_prompt_tokens=most,
                reserved_kv_tokens=self._other_kv_tokens(server, clients, len(admitted)) + grown,
            )
            grants = self.handle(asks, now)
            self.handle(ev.PullAnswered(server.name), now)
            self.changes += bool(grants)
            granted = [self._sequence_of_grant(grant, server, now) for grant in grants]
            admitted += granted
            if not granted or not one_by_one:
                break
            if left is not None:
                left -= sum(sequence.prompt_tokens for sequence in granted)
        return admitted

    def iterations_until_fit(self, inference: Inference, server: Server) -> Tokens:
        """Return after how many iterations an inference fits into a replica's memory."""
        clients = [sequence.client for sequence in server.running.values()]
        clients.append(self.core.state.applications[inference.application_id].tenant)
        reserved = self._other_kv_tokens(server, clients, 0) + self._unreported_growth(server)
        return self.core.iterations_until_fit(inference.request_id, server.name, reserved)

    def first(self) -> Inference | None:
        """Return the next inference to start; None if none waits."""
        application = self.core.ledger.queue.first()
        return None if application is None else application.waiting.first

    def shortest_waiting_prompt(self) -> Tokens | None:
        """Return the length of the shortest waiting prompt; None if none waits."""
        name = self._waiting_prompts.first()
        return None if name is None else int(self._waiting_prompts.key(name)[0])

    def finish(self, end_at: Seconds) -> None:
        """Compute when ideal fair sharing would have finished each application."""
        for name, tag in self._tags.items():
            self._applications[name].gps_finished_at_s = self._gps.time_of_virtual_finish(
                tag, end_at
            )

    @property
    def _virtual_time(self) -> VirtualTime:
        return self.core.lags.virtual_time

    def _sequence_of_grant(self, grant: Grant, server: Server, now: Seconds) -> SimulatedSequence:
        application, inference, due_at = self._requests.pop(grant.request_id)
        self._waiting_prompts.drop(grant.request_id)
        row = InferenceResult(
            application.application_id,
            inference.inference_id,
            server.index,
            due_at,
            now,
            None,
            None,
            inference.prompt_tokens,
            inference.output_tokens,
        )
        return SimulatedSequence(
            grant.request_id,
            grant.lease_id,
            application.application_id,
            application.tenant,
            self._kv_of_prompt(inference),
            inference.output_tokens,
            row,
            inference.prompt_tokens,
            bool(inference.after),
        )

    def _other_kv_tokens(self, server: Server, clients: Iterable[str], admitted: int) -> Tokens:
        unforeseen = admitted + 1 if self._engine.prefill == "separate" else 0
        return server.memory.reserved(clients) + unforeseen

    def _unreported_growth(self, server: Server) -> Tokens:
        """Return the KV tokens that a replica's sequences have gained since its last report."""
        reported = self.core.state.replicas[server.name].leases.context_tokens
        return server.leased_tokens - reported

    def _kv_of_prompt(self, inference: WorkloadInference) -> Tokens:
        return max(1, inference.prompt_tokens - (not self._engine.last_token_held))

    def _open_application(
        self, served: WorkloadApplication, row: ApplicationResult, now: Seconds
    ) -> None:
        """Open an application under its recognised id, which may differ from the workload's."""
        predicted = self._predictions.application_cost(served)
        row.predicted_kv_token_time += predicted
        self.handle(
            ev.ApplicationArrived(
                served.application_id,
                served.application_class,
                served.tenant,
                served.weight,
                predicted,
                _INGRESS,
                self._predictions.accounts_cost(served, self.core.ledger.options),
                row.kv_token_time if self._recognition.is_told else served.cost(),
                self._predictions.charge(predicted),
                recognized_by="" if self._recognition.knows_the_last else CONVERSATION,
                idle_s=None if self._recognition.knows_the_last else IDLE_S,
                expected_stages=self._predictions.stages(served),
            ),
            now,
        )
        self._to_submit[served.application_id] = len(served.inferences)

    def _count_finished(self, application_id: ApplicationId, now: Seconds) -> None:
        """Count a finished inference; after the last one, record that the application has ended."""
        self._to_finish[application_id] -= 1
        if not self._to_finish[application_id]:
            row = self._applications[application_id]
            row.finished_at_s = now
            row.jct_s = now - row.arrived_at_s
            row.outcome = Outcome.FINISHED.value
            self.ended += 1

    def _record_end(self, action: EndApplication) -> None:
        self._to_submit.pop(action.application_id, None)
        self._predictions.end_application(action, action.ended_at)
        if not self._recognition.is_told:
            return
        row = self._applications[action.application_id]
        row.kv_token_time = action.kv_token_time
        row.virtual_finish_time = action.virtual_finish_time
        if action.lag is not None:
            self._result.lateness[action.application_id] = Lateness(
                action.lag.seconds, action.lag.bound_s
            )
