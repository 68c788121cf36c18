"""The real parts of the service in a simulation, observed by the recorder.

A test may replace a part by a broken one.
"""

import asyncio
import json
import random
import zlib
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from ray.exceptions import RayError

from justitia_ray.config import AppConfig, SchedulingConfig
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, Grant
from justitia_ray.core.entities import Outcome
from justitia_ray.core.state import State
from justitia_ray.protocol.engine import EngineCall, EngineCapacity, KeptKv, Progress, ResponseHead
from justitia_ray.protocol.messages import IngressMail, ReplicaMessage
from justitia_ray.serve.engines.factory import load_prompt_counter
from justitia_ray.serve.engines.fake_engine import FakeEngine
from justitia_ray.serve.ingress.deployment import ModelQueue
from justitia_ray.serve.ingress.replica_links import ReplicaLinks
from justitia_ray.serve.ingress.submission import ApplicationSpecCache
from justitia_ray.serve.ingress.token_counter import TokenCounter
from justitia_ray.serve.replica.call_holds import CallHolds
from justitia_ray.serve.replica.deployment import EngineReplica
from justitia_ray.serve.replica.lease_table import HeldLease, LeaseTable
from justitia_ray.serve.replica.puller import Puller
from justitia_ray.serve.replica.stalls import StallWatch
from justitia_ray.serve.scheduler.actor import SchedulerActor
from justitia_ray.serve.scheduler.clock import SteadyClock
from justitia_ray.serve.scheduler.core_driver import CoreDriver
from justitia_ray.serve.scheduler.handle import SchedulerLink
from justitia_ray.serve.scheduler.leadership import Term
from justitia_ray.serve.scheduler.outboxes import Outbox, Outboxes
from justitia_ray.serve.scheduler.service import SchedulerService
from justitia_ray.serve.transport.handshake import Key, Keyring, Offer, Peer
from justitia_ray.serve.transport.listener import Caller, Listener, Serve
from justitia_ray.serve.transport.methods import REPLICA_METHODS, SCHEDULER_METHODS, Method
from justitia_ray.store.scheduler_store import SchedulerStore, StoredState
from justitia_ray.units import ApplicationId, Epoch, LeaseId, ReplicaId, Seconds, Tokens
from tests.harness.planned import KILLER
from tests.harness.simulation.accounts import WatchedAccounts, WatchedAccountsLink
from tests.harness.simulation.connections import Connections, SimulatedDialer
from tests.harness.simulation.network import DetachedHandle, UnreachableHandle, current_process
from tests.harness.simulation.recorder import ClaimAssertions, Recorder, virtual_finish_times
from tests.harness.simulation.store import RedisMemory, StoreClient
from tests.harness.simulation.unusable_leases import WatchedQueueClient
from tests.harness.simulation.virtual_loop import Process

_LOOK_AT_ONE_IN = 8
"""The core's invariants are checked after each event, but only after each eighth heartbeat, which
rarely changes the state.
"""


class WatchedOutboxes(Outboxes):
    """Scheduler's outboxes that report decisions to the recorder."""

    recorder: Recorder
    service: "WatchedService"

    def deliver(self, actions: Iterable[Action], state: State, quiet: Outbox | None) -> None:
        decided = list(actions)
        if decided:
            self.recorder.add_decisions(self.service.office, self.service.core, decided)
        super().deliver(decided, state, quiet)


class WatchedDriver(CoreDriver):
    """Core driver that shows every state of the core to the recorder."""

    recorder: Recorder
    claims: ClaimAssertions
    epoch: Epoch = 0
    began_at: Seconds = 0.0
    _applied = 0

    def begin(self, stored: StoredState, epoch: Epoch) -> None:
        """Start from the state left by the previous scheduler."""
        super().begin(stored, epoch)
        self.claims = ClaimAssertions(self.recorder.finished, self._section.ingress_timeout_s)
        self.epoch, self.began_at = epoch, self.recorder.now

    def apply(
        self,
        event: ev.Event,
        quiet: Outbox | None = None,
        *,
        unstored: ApplicationId | None = None,
    ) -> None:
        """Handle an event, then check the core's state."""
        if isinstance(event, ev.InferenceSubmitted):
            self.claims.add_claim(event)
            self.recorder.check_submission(self.epoch, event.request_id)
        if isinstance(event, ev.Resubmitted):
            self.recorder.use.resubmitted(event.ingress_id, self.epoch)
        before = self._is_unknown(event)
        super().apply(event, quiet, unstored=unstored)
        if before and not self._is_unknown(event) and self.recorder.use.is_latest_epoch(self.epoch):
            self._note_admitted(event)
        if self.claims.pending:
            now, lines = self.recorder.now, self.outboxes.replicas
            for wrong in self.claims.find_reruns(self.core, lines, now - self.began_at, now):
                self.recorder.add_failure("what_has_ended_does_not_run_again", wrong)
        self._applied += 1
        if not _is_heartbeat(event) or self._applied % _LOOK_AT_ONE_IN == 0:
            self.recorder.check_invariants(self.core)

    def _is_unknown(self, event: ev.Event) -> bool:
        """Return whether an event concerns an unknown application or inference."""
        state = self.core.state
        if isinstance(event, ev.ApplicationArrived):
            return event.application_id not in state.applications
        return isinstance(event, ev.InferenceSubmitted) and event.request_id not in state.inferences

    def _note_admitted(self, event: ev.Event) -> None:
        if isinstance(event, ev.ApplicationArrived):
            self.recorder.use.opened(self.core, self.epoch, event)
        elif isinstance(event, ev.InferenceSubmitted):
            self.recorder.use.admitted(self.core, self.epoch, event)


class WatchedService(SchedulerService):
    """Scheduler service that reports its restored state and its decisions to the recorder."""

    recorder: Recorder
    redis: RedisMemory

    def watch(self, config: AppConfig, recorder: Recorder, redis: RedisMemory) -> None:
        """Start reporting to the recorder."""
        self.recorder, self.redis = recorder, redis
        mail = self.make_outboxes()
        mail.recorder, mail.service = recorder, self
        driver = WatchedDriver(config.scheduler, self.term.clock, mail, config.model.name)
        self.term.driver = self.term.admission.driver = driver
        driver.recorder = recorder

    def make_outboxes(self) -> WatchedOutboxes:
        return WatchedOutboxes()

    async def submit_many(self, *call: Any) -> IngressMail:
        """Submit inferences, and record which of them are resubmitted."""
        if any(getattr(item, "resubmitted", False) for item in call[3]):
            self.recorder.use.has_resubmissions = True
        return await super().submit_many(*call)

    @property
    def core(self) -> Any:
        """Scheduler core, replaced when this scheduler becomes leader."""
        return self.term.driver.core

    @property
    def mail(self) -> Outboxes:
        """Outboxes to ingresses and replicas."""
        return self.term.driver.outboxes

    @property
    def office(self) -> Epoch:
        """Epoch of this scheduler; 0 until it leads."""
        return self.term.epoch

    def note_lead(self) -> None:
        """Record the new leader, and check that restored tags equal the stored ones."""
        self.recorder.became_leader(self.term.epoch, self.core, self.redis.tags)


class WatchedLeaseTable(LeaseTable):
    """Lease table of a replica that reports armed and running leases to the recorder."""

    recorder: Recorder
    puller: Puller
    _reports = 0

    def report_ends(self) -> tuple[ev.LeaseFinished, ...]:
        """Report ended leases, and number the pull that reports them."""
        self._reports += 1
        return super().report_ends()

    def read_messages(self, messages: Iterable[ReplicaMessage]) -> None:
        new = list(messages)
        for message in new:
            if isinstance(message, Grant):
                self.recorder.lease_armed(self._replica_id, message.lease_id, self.puller.epoch)
        super().read_messages(new)

    @asynccontextmanager
    async def hold_lease(self, lease_id: LeaseId) -> AsyncGenerator[HeldLease]:
        async with super().hold_lease(lease_id) as lease:
            self.recorder.payload_started(self._replica_id, lease_id, self._engine)
            yield lease

    def _finish_lease(self, lease: HeldLease) -> None:
        super()._finish_lease(lease)
        if not lease.aborted and lease.outcome is Outcome.FINISHED:
            end = self.unconfirmed[lease.lease_id]
            self.recorder.inference_completed(
                self._replica_id, lease.lease_id, self._reports + 1, end.output_tokens
            )

    @property
    def running(self) -> list[LeaseId]:
        """Leases whose inferences run."""
        return [lease_id for lease_id, lease in self.held_leases.items() if lease.task is not None]


_KILLS_AFTER_S: Seconds = 0.02


class WatchedEngine(FakeEngine):
    """Fake engine that reports its work under each lease to the recorder."""

    recorder: Recorder
    replica_id: str
    crash: Callable[[], None]
    """Function that ends the process as SIGSEGV would."""
    holds_contexts = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.holds: dict[LeaseId, tuple[ApplicationId, Seconds, Tokens]] = {}
        """Application, end and tokens of each held context, by the lease that left it."""

    async def start(self) -> EngineCapacity:
        capacity = await super().start()
        return replace(capacity, holds_contexts=self.holds_contexts)

    def kept_kv(self) -> KeptKv:
        now = asyncio.get_running_loop().time()
        tokens = [tokens for _, ends_at, tokens in self.holds.values() if ends_at > now]
        return KeptKv(held_contexts=len(tokens), held_kv_tokens=sum(tokens))

    def _hold_context(self, call: EngineCall) -> None:
        """Hold the context of an ended call, and release those of ended applications."""
        if call.hold is None:
            return
        application_id, for_s, ended = call.hold
        self.holds = {name: hold for name, hold in self.holds.items() if hold[0] not in ended}
        if for_s > 0:
            ends_at = asyncio.get_running_loop().time() + for_s
            used = self.progress(call.lease_id)
            tokens = used.prompt_tokens + used.output_tokens
            self.holds[call.lease_id] = (application_id, ends_at, tokens)
            self.recorder.held += 1

    async def call(self, call: EngineCall) -> AsyncGenerator[ResponseHead | bytes]:
        """Run a call; a killer prompt kills the engine or the process before the first token."""
        prompt = json.loads(call.body)["prompt"]
        if prompt.endswith(KILLER):
            name = prompt.partition(" ")[0]
            timer = asyncio.get_running_loop().call_later(_KILLS_AFTER_S, self._die_by_killer, name)
        async with aclosing(super().call(call)) as items:
            try:
                async for item in items:
                    yield item
            finally:
                if prompt.endswith(KILLER):
                    timer.cancel()
                self._hold_context(call)

    def _die_by_killer(self, name: str) -> None:
        self.recorder.killed[name] += 1
        if zlib.crc32(name.encode()) % 2:
            self.crash()
        else:
            self.die()

    def release(self, lease_id: LeaseId) -> Progress:
        so_far, used = self.progress(lease_id), super().release(lease_id)
        self.recorder.payload_ended(self.replica_id, lease_id, so_far, used)
        return used


def _is_heartbeat(event: ev.Event) -> bool:
    """Return whether an event only shows that its sender lives."""
    if isinstance(event, ev.ReplicaPulled):
        return not event.progress and not event.finished
    return isinstance(event, ev.IngressHeartbeat | ev.PullAnswered)


class WatchedSchedulerLink(SchedulerLink):
    """Link to the scheduler that reports the epochs named by its process to the recorder."""

    recorder: Recorder

    async def call(self, method: str, *arguments: Any) -> Any:
        if method in _EPOCHS:
            self.recorder.check_named_epoch(current_process(), _EPOCHS[method](arguments))
        return await super().call(method, *arguments)


_EPOCHS: dict[str, Callable[[tuple[Any, ...]], Epoch]] = {
    "submit_many": lambda arguments: arguments[1],
    "poll_grants": lambda arguments: arguments[1],
    "pull": lambda arguments: arguments[0].epoch,
}
"""Position of the epoch among the arguments of each call that has one."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Classes from which a simulation is built; mutants replace some of them."""

    service: type[WatchedService] = WatchedService
    leases: type[WatchedLeaseTable] = WatchedLeaseTable
    puller: type[Puller] = Puller
    holds: type[CallHolds] = CallHolds
    stalls: type[StallWatch] = StallWatch
    client: type[WatchedQueueClient] = WatchedQueueClient
    keyring: type[Keyring] = Keyring
    replica_methods: Mapping[str, Method] = field(default_factory=lambda: REPLICA_METHODS)
    accounts: type[WatchedAccounts] = WatchedAccounts
    store: type[StoreClient] = StoreClient


class ProcessLinks:
    """Outgoing connections of a simulated process, and its keys."""

    def __init__(
        self,
        process: Process,
        me: Peer,
        parts: Parts,
        connections: Connections,
        scheduler: DetachedHandle,
        recorder: Recorder,
        standstill_s: Seconds,
    ) -> None:
        self.keyring = parts.keyring()

        def dialer(methods: Mapping[str, Method], standstill_s: Seconds = 0.0) -> SimulatedDialer:
            return SimulatedDialer(connections, process, me, self.keyring, methods, standstill_s)

        self.scheduler = WatchedSchedulerLink(
            scheduler, self.keyring, dialer(SCHEDULER_METHODS).dial
        )
        self.scheduler.recorder = recorder
        self.replicas = ReplicaLinks(dialer(REPLICA_METHODS, standstill_s).dial)


class SchedulerWithoutRay(SchedulerActor):
    """Scheduler actor without the parts that need Ray."""

    def __init__(
        self,
        config: AppConfig,
        make_service: Callable[[], WatchedService],
        connections: Connections,
        address: str,
        on_step_down: Callable[[str], None],
    ) -> None:
        self._config = config
        self._redis = None
        self._service = self._leading = self._starting = self._listening = None
        self._failure = "starting"
        self._key = Key.new()
        self._make = make_service
        self._connections = connections
        self._address = address
        self._on_step_down = on_step_down
        self._process = current_process()
        self._listener = None
        self.listener: Listener | None = None

    @property
    def is_leading(self) -> bool:
        """Whether the scheduler leads and takes calls."""
        return self._leading is not None

    async def _start_service(self, above: Epoch = 0) -> SchedulerService:
        service = await super()._start_service(above)
        cast(WatchedService, service).note_lead()
        return service

    async def _make_service(self) -> SchedulerService:
        return self._make()

    async def _start_listening(self) -> Offer:
        keyring, name = Keyring(), self._config.scheduler_name
        keyring.add(self._key)
        serve = {method: self._handler_of(method) for method in SCHEDULER_METHODS}
        self._listener = self.listener = Listener(
            name,
            keyring,
            SCHEDULER_METHODS,
            serve,
            on_lost=self._peer_lost,
            standstill_s=self._config.transport.standstill_s,
        )
        if self._service is not None:
            self._service.connected = self.listener.peers
        self._connections.listen(self._address, self._process, self.listener)
        return Offer(self._address, name, self._key)

    def _step_down(self, reason: str) -> None:
        self._on_step_down(reason)


class SchedulerHost:
    """Simulated process of a scheduler."""

    def __init__(
        self,
        number: int,
        config: AppConfig,
        parts: Parts,
        redis: RedisMemory,
        rng: random.Random,
        recorder: Recorder,
        connections: Connections,
        on_step_down: Callable[["SchedulerHost", str], None],
        wall_ahead_s: Seconds,
        accounts: DetachedHandle | None,
    ) -> None:
        """Start the process, which then tries to become leader.

        Args:
            number: Number of the process.
            config: Of the application.
            parts: What it is made of.
            redis: What is stored.
            rng: For the store's delays.
            recorder: Sees everything.
            connections: Where it listens.
            on_step_down: Told when this scheduler is not to go on.
            wall_ahead_s: How far its wall clock is ahead of the loop's time.
            accounts: The accounts of the tenants' quotas; None: there are none.
        """
        loop = asyncio.get_running_loop()
        self.process = Process("scheduler")
        self.is_leaving = False
        self.wall_ahead_s = wall_ahead_s
        self.answers: WatchedService
        """Scheduler service that leads, or is about to lead."""

        def note_saved(epoch: Epoch, began_at: Seconds) -> None:
            recorder.use.saved(epoch, began_at - loop.time() + recorder.now)

        store = parts.store(redis, rng, lambda: virtual_finish_times(self.answers.core), note_saved)

        def connect_accounts() -> WatchedAccountsLink:
            link = WatchedAccountsLink(config, lambda _: accounts)
            link.recorder = recorder
            return link

        def make_service() -> WatchedService:
            term = Term(
                config,
                cast(SchedulerStore, store),
                lambda reason: on_step_down(self, reason),
                clock=SteadyClock(loop.time, lambda: loop.time() + wall_ahead_s),
                begin_again=begin_again,
                connect_accounts=connect_accounts,
            )
            self.answers = parts.service(term)
            self.answers.watch(config, recorder, redis)
            return self.answers

        def begin_again(above: Epoch) -> None:
            recorder.add_event("scheduler", f"begins again above epoch {above}")
            self.actor._start_new_term(above)

        address = f"scheduler:{number}"
        self.actor = self.process.run(
            lambda: SchedulerWithoutRay(
                config,
                make_service,
                connections,
                address,
                lambda reason: on_step_down(self, reason),
            )
        )
        self.process.start(self.actor.started())

    @property
    def in_charge(self) -> bool:
        """Whether the process lives and takes calls."""
        return self.process.alive and not self.process.paused and self.actor.is_leading

    async def stop(self) -> None:
        """Save a last time, and close all connections."""
        await self.actor.retire()
        if self.actor.listener is not None:
            await self.actor.listener.stop()


class ReplicaWithoutServe(EngineReplica):
    """Replica without the parts that need Ray Serve."""

    def __init__(
        self,
        config: AppConfig,
        replica_id: ReplicaId,
        engine: WatchedEngine,
        on_engine_died: Callable[[], None],
    ) -> None:
        self._config = config
        self._replica_id = replica_id
        self._engine: WatchedEngine = engine
        self._on_engine_died = on_engine_died
        self._leaving = None
        self._pulling = self._listener = self._exporter = None
        self._tracer = self._spans = self._crashes = self._holds = None
        self.callers: dict[LeaseId, Caller] = {}
        """Process that sends each lease's inference."""

    async def begin(
        self, parts: Parts, links: ProcessLinks, connections: Connections, recorder: Recorder
    ) -> None:
        """Start the engine, find the scheduler, listen, then pull."""
        self._capacity: EngineCapacity = await self._engine.start()
        grace_s = self._config.replica.lease_grace_s
        self.leases = self._leases = parts.leases(self._replica_id, self._engine, grace_s)
        if self._capacity.holds_contexts:
            self._holds = parts.holds()
        self._scheduler = links.scheduler
        await self._scheduler.connected()
        serve: dict[str, Serve] = {
            "unary": self.unary,
            "stream": self.stream,
            "inspect": self.inspect,
        }
        address = f"{current_process().name}:1"  # A later scheduler has the same address.
        self._listener = Listener(
            self._replica_id,
            links.keyring,
            parts.replica_methods,
            serve,
            standstill_s=self._config.transport.standstill_s,
        )
        connections.listen(address, current_process(), self._listener)
        self._stalls = parts.stalls(self._config.replica)
        self.puller = self._puller = parts.puller(
            self._replica_id,
            self._scheduler,
            self.leases,
            self._engine,
            self._capacity,
            self._config.replica,
            self._engine_died,
            address,
            self._stalls,
            holds=self._holds,
        )
        self.leases.recorder, self.leases.puller = recorder, self.puller
        self._pulling = asyncio.get_running_loop().create_task(self._puller.run())
        self._watching = self._watch_engine()

    async def unary(self, caller: Caller, lease_id: str, *arguments: Any) -> Any:
        self.callers[lease_id] = caller
        return await super().unary(caller, lease_id, *arguments)

    async def stream(self, caller: Caller, lease_id: str, *arguments: Any) -> AsyncGenerator[Any]:
        self.callers[lease_id] = caller
        async with aclosing(super().stream(caller, lease_id, *arguments)) as items:
            async for item in items:
                yield item

    @property
    def has_begun(self) -> bool:
        return self._pulling is not None

    async def leave(self) -> None:
        """Run the steps of a replica that Serve removes."""
        await super().__del__()

    def __del__(self) -> None:  # type: ignore[override]  # Serve awaits that one
        """Do nothing: the garbage collector calls this in a simulation, not Serve."""

    async def _leave_process(self) -> None:
        self._on_engine_died()


class ReplicaHost:
    """Simulated process of a replica."""

    def __init__(
        self, slot: int, replica_id: ReplicaId, config: AppConfig, recorder: Recorder
    ) -> None:
        """Create the process; `begin` starts it.

        Args:
            slot: Its place; a successor has the same.
            replica_id: Its id, of its own.
            config: Of the application.
            recorder: Sees everything.
        """
        self.slot = slot
        self.replica_id = replica_id
        self.process = Process(f"replica-{slot}")
        self.draining = False
        fake = config.engine.fake
        self.engine = self.process.run(
            lambda: WatchedEngine(
                config.model.name,
                fake.kv_tokens,
                fake.block_size,
                fake.max_num_seqs,
                fake.max_model_len,
                fake.iteration_s,
            )
        )
        self.engine.recorder, self.engine.replica_id = recorder, replica_id
        self._recorder = recorder
        self._config = config
        self.answers: ReplicaWithoutServe

    def begin(
        self,
        parts: Parts,
        connections: Connections,
        scheduler: DetachedHandle,
        on_died: Callable[["ReplicaHost"], None],
        on_crash: Callable[["ReplicaHost"], None],
    ) -> None:
        self.engine.crash = lambda: on_crash(self)
        self.answers = ReplicaWithoutServe(
            self._config, self.replica_id, self.engine, lambda: on_died(self)
        )
        me = Peer("replica", self.replica_id)
        standstill_s = self._config.transport.standstill_s
        links = ProcessLinks(
            self.process, me, parts, connections, scheduler, self._recorder, standstill_s
        )
        self.process.start(self.answers.begin(parts, links, connections, self._recorder))

    @property
    def is_pulling(self) -> bool:
        """Whether the process lives and is not paused."""
        return self.process.alive and not self.process.paused


class IngressHost:
    """Simulated process of an ingress: its side of the queue, without HTTP."""

    def __init__(
        self,
        slot: int,
        name: str,
        config: AppConfig,
        parts: Parts,
        connections: Connections,
        scheduler: DetachedHandle,
        nobody: UnreachableHandle,
        recorder: Recorder,
    ) -> None:
        self.slot = slot
        self.name = name
        self.process = Process(f"ingress-{slot}")
        me = Peer("ingress", name)
        standstill_s = config.transport.standstill_s
        self._links = ProcessLinks(
            self.process, me, parts, connections, scheduler, recorder, standstill_s
        )
        self.answers = self.process.run(
            lambda: ModelQueue(
                config,
                scheduler,
                nobody,
                nobody,
                TokenCounter(load_prompt_counter(config)),
                ApplicationSpecCache(0.0, 0),
                self._links.scheduler,
                self._links.replicas,
                make_client=parts.client,
            )
        )
        self.process.run(self.answers.client.start)
        self.is_ready = False
        """Whether the ingress takes connections; Serve configures an ingress first."""

    async def configure(self, settings: dict[str, Any]) -> None:
        """Apply settings; repeat until the ingress has forwarded them to the scheduler."""
        while True:
            try:
                await self.answers.reconfigure(SchedulingConfig.parse(settings))
                break
            except RayError:
                await asyncio.sleep(0.2)
        self.is_ready = True

    async def stop(self) -> None:
        """Close all connections of the ingress."""
        await self.answers.client.stop()
        await self._links.replicas.close()
        await self._links.scheduler.close()
