"""Measurement of `scripts/bench_scheduler`: one scheduler process between light fakes.

The scheduler is the actor's own class in its own process, with store, metrics and log but without
Ray. Fake ingresses and replicas use the real connections: an ingress keeps a fixed number of
one-inference applications in the queue; a replica pulls like a real one and ends its leases at
once. All ingresses share one process, all replicas another.
"""

import asyncio
import cProfile
import itertools
import multiprocessing
import os
import pstats
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from justitia_ray.config import AppConfig, ReplicaSection
from justitia_ray.core.actions import Grant, Refuse, RefuseApplication
from justitia_ray.core.entities import Outcome
from justitia_ray.core.events import (
    ApplicationArrived,
    ApplicationClosed,
    InferenceSubmitted,
    LeaseFinished,
)
from justitia_ray.cost import kv_token_time
from justitia_ray.protocol.engine import Engine, EngineCapacity, Progress
from justitia_ray.protocol.mailbox import Cursor
from justitia_ray.protocol.messages import IngressMail, ReplicaMessage, Submission
from justitia_ray.serve.ingress.scheduler_session import BATCH
from justitia_ray.serve.replica.lease_table import LeaseTable
from justitia_ray.serve.replica.puller import Puller
from justitia_ray.serve.replica.stalls import StallWatch
from justitia_ray.serve.scheduler.actor import SchedulerActor
from justitia_ray.serve.transport.dialer import Dialer
from justitia_ray.serve.transport.handshake import Keyring, Offer, Peer
from justitia_ray.serve.transport.link import Link
from justitia_ray.serve.transport.methods import SCHEDULER_METHODS
from justitia_ray.units import Seconds, Tokens

PROMPT_TOKENS: Tokens = 16
OUTPUT_TOKENS: Tokens = 4
SEATS = 256
_KV_TOKENS: Tokens = 1_000_000
_START_S: Seconds = 120.0
"""Longest wait in seconds for a process to start, which imports Ray."""
_STOP_S: Seconds = 20.0
_MARK, _STOP = "mark", "stop"


@dataclass(frozen=True, slots=True)
class Load:
    """Size of a scheduler load: callers, processes, idle applications and duration."""

    ingresses: int
    replicas: int
    callers: int
    """Number of concurrent applications that wait or run, each with one inference."""
    standing: int
    """Number of additional open applications without inferences."""
    warm_up_s: Seconds
    window_s: Seconds
    durability: str


@dataclass(frozen=True, slots=True)
class Reading:
    """Figures of one measuring window of the scheduler."""

    inferences_per_s: float
    cpu_ms: float
    """CPU time of the scheduler per inference, in ms."""
    busy: float
    """Fraction of one core that the scheduler used."""
    fakes_cpu_ms: tuple[float, float]
    """CPU ms per inference that the fake ingresses and the fake replicas used."""
    decision_p50_s: Seconds
    decision_p99_s: Seconds
    """99th percentile of wall-clock decision times, rounded up to a step of the histogram."""
    live_applications: int

    @property
    def ceiling_per_s(self) -> float:
        """Inferences per second at which the scheduler would fill one core."""
        return 1e3 / self.cpu_ms


def measure(load: Load, profile: Path | None = None) -> Reading:
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-scheduler-"))
        config = {
            "model": {"name": "m", "path": "none"},
            "store": {"durability": load.durability, "data_dir": f"{directory}/redis"},
        }
        log = f"{directory}/scheduler.log"
        scheduler = stack.enter_context(_BenchmarkProcess(_run_scheduler, config, log, profile))
        offer = scheduler.receive()
        callers = -(-load.callers // load.ingresses)
        fakes = [
            stack.enter_context(_BenchmarkProcess(_run_replicas, offer, load.replicas)),
            stack.enter_context(
                _BenchmarkProcess(_run_ingresses, offer, load.ingresses, callers, load.standing)
            ),
        ]
        for process in fakes:
            process.receive()
        time.sleep(load.warm_up_s)
        before = [process.send_question(_MARK) for process in (scheduler, *fakes)]
        began = time.monotonic()
        time.sleep(load.window_s)
        after = [process.send_question(_MARK) for process in (scheduler, *fakes)]
        elapsed_s = time.monotonic() - began
    cpu_s = [late["cpu_s"] - early["cpu_s"] for early, late in zip(before, after, strict=True)]
    (first, *_), (last, *_) = before, after
    inferences = last["grants"] - first["grants"]
    if not inferences:
        raise RuntimeError(f"no inference in {elapsed_s:.1f} s of {load}: {last}")
    each = [1e3 * seconds / inferences for seconds in cpu_s]
    durations = _count_increases(first["decisions"], last["decisions"])
    return Reading(
        inferences_per_s=inferences / elapsed_s,
        cpu_ms=each[0],
        busy=cpu_s[0] / elapsed_s,
        fakes_cpu_ms=(each[2], each[1]),
        decision_p50_s=_percentile(durations, 50),
        decision_p99_s=_percentile(durations, 99),
        live_applications=last["applications"],
    )


def _count_increases(
    before: Iterable[tuple[Seconds, int]], after: Iterable[tuple[Seconds, int]]
) -> list[tuple[Seconds, int]]:
    """Return the growth of each count of decisions between two readings, by upper bound."""
    earlier = dict(before)
    return [(at_most_s, count - earlier.get(at_most_s, 0)) for at_most_s, count in after]


def _percentile(durations: Iterable[tuple[Seconds, int]], percent: float) -> Seconds:
    steps = sorted(durations)
    wanted = sum(count for _, count in steps) * percent / 100
    reached = itertools.accumulate(count for _, count in steps)
    return next(
        at_most_s for (at_most_s, _), so_far in zip(steps, reached, strict=True) if so_far >= wanted
    )


# --- processes


class _BenchmarkProcess:
    """Child process of the benchmark, with a pipe to it."""

    def __init__(self, run: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_start_process, args=(run, theirs, *arguments), daemon=True
        )

    def __enter__(self) -> "_BenchmarkProcess":
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):
            self._pipe.send(_STOP)
        self._process.join(_STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def send_question(self, question: str) -> Any:
        self._pipe.send(question)
        return self.receive()

    def receive(self) -> Any:
        if not self._pipe.poll(_START_S):
            raise RuntimeError(f"no answer from {self._process.name} in {_START_S:g} s")
        try:
            return self._pipe.recv()
        except EOFError:
            raise RuntimeError(f"{self._process.name} has ended; see above") from None


def _start_process(run: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
    asyncio.run(run(*arguments))


def _write_errors_to(log: str) -> None:
    """Redirect this process's log to a file, as Ray does for a worker."""
    with Path(log).open("ab") as lines:
        os.dup2(lines.fileno(), 2)


async def _answer_questions(
    pipe: Connection, mark: Callable[[], Coroutine[Any, Any, dict[str, Any]]]
) -> None:
    """Answer each request of the benchmark with this process's figures, until `_STOP`."""
    while await asyncio.to_thread(pipe.recv) != _STOP:
        pipe.send({"cpu_s": time.process_time(), **await mark()})


async def _run_scheduler(
    pipe: Connection, config: dict[str, Any], log: str, profile: Path | None
) -> None:
    _write_errors_to(log)
    actor = SchedulerActor(AppConfig.parse(config).model_dump())
    await actor.configure({})
    pipe.send(await actor.link())
    profiler = cProfile.Profile() if profile is not None else None
    marks = 0

    async def read_figures() -> dict[str, Any]:
        nonlocal marks
        marks += 1
        status = await actor.status()
        if profiler is not None:
            if marks == 1:
                profiler.enable()
            else:
                profiler.disable()
        return {
            "grants": status["grants"],
            "applications": status["applications"],
            "decisions": [tuple(step) for step in status["decisions"]["at_most_s"]],
        }

    await _answer_questions(pipe, read_figures)
    if profiler is not None and profile is not None:
        pstats.Stats(profiler).dump_stats(profile)
    await actor.retire()


async def _dial_scheduler(offer: Offer, role: str, name: str) -> Link:
    keyring = Keyring()
    keyring.add(offer.key)
    return await Dialer(Peer(role, name), keyring, SCHEDULER_METHODS).dial(
        offer.address, offer.target
    )


async def _do_nothing() -> dict[str, Any]:
    return {}


# --- fakes


async def _run_ingresses(
    pipe: Connection, offer: Offer, count: int, callers: int, standing: int
) -> None:
    ingresses = [
        FakeIngress(await _dial_scheduler(offer, "ingress", f"i{number}"), f"i{number}", callers)
        for number in range(count)
    ]
    for ingress in ingresses:
        await ingress.begin(-(-standing // count))
    await _until_stopped(pipe, [ingress.run() for ingress in ingresses])


async def _run_replicas(pipe: Connection, offer: Offer, count: int) -> None:
    pullers = [
        _make_puller(await _dial_scheduler(offer, "replica", f"r{n}"), f"r{n}")
        for n in range(count)
    ]
    await _until_stopped(pipe, [puller.run() for puller in pullers])


async def _until_stopped(pipe: Connection, work: list[Coroutine[Any, Any, None]]) -> None:
    tasks = [asyncio.create_task(part) for part in work]
    pipe.send("ready")
    answering = asyncio.create_task(_answer_questions(pipe, _do_nothing))
    await asyncio.wait([*tasks, answering], return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done():
            task.result()  # A polling task ends only with an error.


class FakeIngress:
    """Ingress that keeps a fixed number of one-inference applications in the queue."""

    def __init__(self, link: Link, ingress_id: str, callers: int) -> None:
        """Make an ingress that has not submitted anything.

        Args:
            link: Connection to the scheduler.
            ingress_id: Name of this ingress.
            callers: Applications that wait or run at every instant.
        """
        self._link = link
        self._ingress_id = ingress_id
        self._numbers = itertools.count()
        self._epoch = 0
        self._cursor = Cursor()
        self._unsent: list[Submission] = []
        self._has_unsent = asyncio.Event()
        self._callers = callers

    async def begin(self, standing: int) -> None:
        """Read the scheduler's epoch, and open the applications that stay idle."""
        mail: IngressMail = await self._link.call("submit_many", self._ingress_id, 0, 0, ())
        self._epoch = mail.epoch
        for first in range(0, standing, BATCH):
            numbers = range(first, min(standing, first + BATCH))
            await self._call_scheduler(
                "submit_many", tuple(self._opened_application(f"idle-{n}") for n in numbers)
            )

    async def run(self) -> None:
        """Submit a new application after each grant, until the task is cancelled."""
        for _ in range(self._callers):
            self._submit_next()
        await asyncio.gather(self._keep_submitting(), self._keep_polling())

    def _submit_next(self) -> None:
        opened = self._opened_application(str(next(self._numbers)))
        name = opened.application_id
        self._unsent.append(opened)
        self._unsent.append(
            InferenceSubmitted(
                name, name, "0", self._ingress_id, PROMPT_TOKENS, OUTPUT_TOKENS, OUTPUT_TOKENS
            )
        )
        self._unsent.append(ApplicationClosed(name))
        self._has_unsent.set()

    def _opened_application(self, name: str) -> ApplicationArrived:
        cost = kv_token_time(PROMPT_TOKENS, OUTPUT_TOKENS)
        application_id = f"{self._ingress_id}-{name}"
        return ApplicationArrived(application_id, "class", "tenant", 1.0, cost, self._ingress_id)

    async def _keep_submitting(self) -> None:
        while True:
            await self._has_unsent.wait()
            batch, self._unsent = self._unsent[:BATCH], self._unsent[BATCH:]
            if not self._unsent:
                self._has_unsent.clear()
            self._take_grants(await self._call_scheduler("submit_many", tuple(batch)))

    async def _keep_polling(self) -> None:
        while True:
            self._take_grants(await self._call_scheduler("poll_grants"))

    async def _call_scheduler(self, method: str, *arguments: Any) -> IngressMail:
        mail: IngressMail = await self._link.call(
            method, self._ingress_id, self._epoch, self._cursor.ack, *arguments
        )
        return mail

    def _take_grants(self, mail: IngressMail) -> None:
        if mail.epoch != self._epoch or mail.forgotten:
            raise RuntimeError(f"{self._ingress_id} is not known any more: {mail}")
        for message in self._cursor.fresh(mail.messages):
            if isinstance(message, Grant):
                self._submit_next()
            elif isinstance(message, Refuse | RefuseApplication):
                raise RuntimeError(f"{self._ingress_id} was refused: {message}")


class _InstantLeases(LeaseTable):
    """Lease table that ends every lease at once, as if all tokens had been generated."""

    def read_messages(self, messages: Iterable[ReplicaMessage]) -> None:
        for message in messages:
            if isinstance(message, Grant):
                self.unconfirmed[message.lease_id] = LeaseFinished(
                    message.lease_id, PROMPT_TOKENS, OUTPUT_TOKENS, Outcome.FINISHED
                )
        if self.unconfirmed:
            self.news.set()


class _IdleEngine:
    """Fake engine with only the attributes that a replica's pulls read."""

    def progress(self, lease_id: str) -> Progress:
        return Progress(PROMPT_TOKENS, OUTPUT_TOKENS)

    def free_kv_tokens(self) -> Tokens:
        return _KV_TOKENS

    def preemptions(self) -> int:
        return 0

    def check(self) -> None: ...


def _make_puller(link: Link, replica_id: str) -> Puller:
    engine = cast(Engine, _IdleEngine())
    return Puller(
        replica_id,
        link,
        _InstantLeases(replica_id, engine, grace_s=1.0),
        engine,
        EngineCapacity(_KV_TOKENS, 16, SEATS, 4096),
        ReplicaSection(),
        lambda error: None,
        "127.0.0.1:1",
        StallWatch(ReplicaSection()),
    )
