"""Pulls of a replica: ended leases at once, progress at intervals or when it may be unknown."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from justitia_ray.config import ReplicaSection
from justitia_ray.core.actions import Grant
from justitia_ray.core.entities import FailureCause, Outcome
from justitia_ray.core.events import LeaseProgress
from justitia_ray.errors import ConnectionLost
from justitia_ray.protocol.engine import Engine, EngineCapacity, Hold, KeptKv, Progress
from justitia_ray.protocol.mailbox import Mailbox
from justitia_ray.protocol.messages import NOT_TAKEN, HoldContext, Pull, ReplicaMail, ReplicaMessage
from justitia_ray.serve.replica.call_holds import CallHolds
from justitia_ray.serve.replica.lease_table import LeaseTable
from justitia_ray.serve.replica.puller import Puller
from justitia_ray.serve.replica.stalls import StallWatch
from tests.harness.simulation.virtual_loop import run_virtually

_REPORT_S = 0.25


class _Meters:
    """Fake engine meter that the puller reads."""

    def progress(self, lease_id: str) -> Progress:
        return Progress(5, 1)

    def release(self, lease_id: str) -> Progress:
        return Progress(5, 2)

    def free_kv_tokens(self) -> int:
        return 90

    def kept_kv(self) -> KeptKv:
        return KeptKv(held_contexts=2, held_kv_tokens=40)

    def preemptions(self) -> int:
        return 0

    def check(self) -> None:
        """Report a healthy engine."""


class _Scheduler:
    """Fake scheduler that answers each pull after one second, or at once with a message."""

    def __init__(self) -> None:
        self.epoch = 1
        self.pulls: list[tuple[float, Pull]] = []
        self.left: list[str] = []
        """Ended leases that were confirmed when the replica left."""
        self.confirmed: list[str] = []
        self.answer: Callable[[Pull], ReplicaMail | None] = lambda pull: None
        """Function that answers a pull at once, or raises an error."""
        self._mailbox: Mailbox[ReplicaMessage] = Mailbox()
        self._released = asyncio.Event()

    def send_grant(self, lease_id: str) -> None:
        self._mailbox.put(Grant("q", "i", lease_id, "r", 0, 10, 0.0))
        self._released.set()

    async def call(self, method: str, argument: Pull | str) -> ReplicaMail | None:
        if not isinstance(argument, Pull):
            assert ("leave", "r") == (method, argument)
            self.left = list(self.confirmed)
            return None
        return await self._pull(argument)

    async def _pull(self, pull: Pull) -> ReplicaMail:
        self.pulls.append((asyncio.get_running_loop().time(), pull))
        answer = self.answer(pull)
        if answer is not None:
            return answer
        self._released.set()
        if pull.epoch == self.epoch and not self._mailbox.unread_after(pull.ack):
            released = self._released = asyncio.Event()
            asyncio.get_running_loop().call_later(pull.wait_s, released.set)
            await released.wait()
        if pull.epoch == self.epoch:
            self.confirmed += [end.lease_id for end in pull.finished]
        return ReplicaMail(self.epoch, tuple(self._mailbox.unread_after(pull.ack)))


class _Replica:
    """Running puller of a replica, with its lease table."""

    def __init__(self) -> None:
        self.scheduler = _Scheduler()
        engine = cast(Engine, _Meters())
        self.leases = LeaseTable("r", engine, grace_s=1.0)
        section = ReplicaSection(report_interval_s=_REPORT_S)
        self.stalls = StallWatch(section)
        self.puller = Puller(
            "r",
            self.scheduler,
            self.leases,
            engine,
            EngineCapacity(100, 1, 8, 100),
            section,
            lambda error: None,
            "127.0.0.1:1",
            self.stalls,
        )
        self.ends: dict[str, asyncio.Event] = {}

    async def run_lease(self, lease_id: str) -> None:
        """Grant an inference and let it run until the event `ends`."""
        self.scheduler.send_grant(lease_id)
        self.ends[lease_id] = asyncio.Event()
        async with self.leases.hold_lease(lease_id) as lease:
            await self.ends[lease_id].wait()
            lease.outcome = Outcome.FINISHED

    @property
    def leases_in_pulls(self) -> list[tuple[list[str] | None, list[str]]]:
        """(leases held, leases ended) in each pull; None stands for a pull without held leases."""
        return [
            (
                None if pull.progress is None else [p.lease_id for p in pull.progress],
                [end.lease_id for end in pull.finished],
            )
            for _, pull in self.scheduler.pulls
        ]


def _run_scenario(scene: Callable[[_Replica], Coroutine[Any, Any, None]]) -> None:
    async def run_puller() -> None:
        replica = _Replica()
        pulling = asyncio.create_task(replica.puller.run())
        await asyncio.sleep(0.1)
        await scene(replica)
        pulling.cancel()
        await asyncio.gather(pulling, return_exceptions=True)
        await replica.puller.leave()

    run_virtually(run_puller())


def test_ended_leases_are_sent_at_once_and_progress_at_intervals() -> None:
    """One pull follows the end of each lease.

    Listing 255 other leases in it would cost a hundred times as much.
    """

    async def run_three_leases(replica: _Replica) -> None:
        tasks = [asyncio.create_task(replica.run_lease(name)) for name in ("1-1", "1-2", "1-3")]
        await asyncio.sleep(10 * _REPORT_S)
        replica.scheduler.pulls.clear()
        for name in ("1-1", "1-2"):
            replica.ends[name].set()
            await asyncio.sleep(_REPORT_S / 5)
        at_once = [report for report in replica.leases_in_pulls if report[1]]
        await asyncio.sleep(10 * _REPORT_S)
        named = [(at, pull) for at, pull in replica.scheduler.pulls if pull.progress is not None]
        replica.ends["1-3"].set()
        await asyncio.gather(*tasks)

        assert [["1-1"], ["1-2"]] == [ends[-1:] for _, ends in at_once if _ is None]
        assert 9 <= len(named) <= 12
        gaps = [later[0] - first[0] for first, later in itertools.pairwise(named)]
        assert max(gaps) <= _REPORT_S + ReplicaSection().pull_interval_s + 1e-9
        assert (LeaseProgress("1-3", 5, 1, running=True),) == named[-1][1].progress

    _run_scenario(run_three_leases)


@pytest.mark.parametrize("trouble", ["new epoch", "not taken", "lost"])
def test_progress_is_repeated_after_a_possibly_lost_pull(trouble: str) -> None:
    """Without a report, the scheduler would expire running leases or grant too much memory."""

    async def lose_a_pull(replica: _Replica) -> None:
        task = asyncio.create_task(replica.run_lease("1-1"))
        await asyncio.sleep(10 * _REPORT_S)
        failing = [True]

        def fail_once(pull: Pull) -> ReplicaMail | None:
            if not failing:
                return None
            failing.clear()
            replica.scheduler.pulls.clear()
            if trouble == "lost":
                raise ConnectionLost
            if trouble == "not taken":
                return ReplicaMail(NOT_TAKEN)
            replica.scheduler.epoch = 2
            return ReplicaMail(2)

        replica.scheduler.answer = fail_once
        replica.leases.news.set()
        await asyncio.sleep(_REPORT_S * 0.9)
        first = replica.leases_in_pulls[0]
        replica.ends["1-1"].set()
        await task

        assert (["1-1"], []) == first

    _run_scenario(lose_a_pull)


def test_replica_pauses_between_pulls_from_a_scheduler_of_a_lower_epoch() -> None:
    """A scheduler with a lower epoch answers at once until it learns that it was replaced."""

    async def meet_a_lower_epoch(replica: _Replica) -> None:
        replica.puller.epoch = 3
        replica.scheduler.pulls.clear()

        def answer(pull: Pull) -> ReplicaMail:
            assert len(replica.scheduler.pulls) < 100
            return ReplicaMail(1)

        replica.scheduler.answer = answer
        await asyncio.sleep(5.0)
        replica.scheduler.answer = lambda pull: None
        replica.scheduler.epoch = 4
        await asyncio.sleep(1.0)

        assert 4 == replica.puller.epoch

    _run_scenario(meet_a_lower_epoch)


@pytest.mark.parametrize("trouble", ["none", "new epoch", "lost"])
def test_last_ended_leases_are_sent_before_the_replica_leaves(trouble: str) -> None:
    """Otherwise the leases of a stopped replica would count as lost and run once more."""
    replicas = []

    async def stop_replica(replica: _Replica) -> None:
        replicas.append(replica)
        task = asyncio.create_task(replica.run_lease("1-1"))
        await asyncio.sleep(10 * _REPORT_S)
        if trouble == "new epoch":
            replica.scheduler.epoch = 2
        elif trouble == "lost":
            failing = [True, True]

            def fail_sometimes(pull: Pull) -> ReplicaMail | None:
                if failing:
                    failing.pop()
                    raise ConnectionLost
                return None

            replica.scheduler.answer = fail_sometimes
        replica.ends["1-1"].set()
        await task

    _run_scenario(stop_replica)
    assert ["1-1"] == replicas[0].scheduler.left


@pytest.mark.parametrize("trouble", ["none", "new epoch"])
def test_engine_failure_is_sent_at_once_with_the_running_leases(trouble: str) -> None:
    """An ingress that sees the failure first would otherwise get its call leased again."""

    async def fail_engine(replica: _Replica) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(replica.run_lease("1-1"))
        await asyncio.sleep(10 * _REPORT_S)
        replica.scheduler.send_grant("1-2")  # the lease has no payload
        await asyncio.sleep(0.1)
        if trouble == "new epoch":
            replica.scheduler.epoch = 2
        replica.scheduler.pulls.clear()
        failed_at = loop.time()
        replica.leases.note_engine_failed(FailureCause.CRASH)
        async with asyncio.timeout(_REPORT_S):
            await replica.leases.failure_told.wait()
        at, pull = replica.scheduler.pulls[-1]
        replica.ends["1-1"].set()
        await task

        assert at - failed_at <= ReplicaSection().pull_interval_s + 1e-9
        assert pull.failure is not None
        failure = pull.failure
        assert ("r", "r") == (failure.replica_id, failure.failure_id)
        assert failure.cause is FailureCause.CRASH
        (ran,) = failure.ran
        assert "1-1" == ran.lease_id
        assert 2.4 < ran.ran_s < 2.8
        assert (0.0, replica.scheduler.epoch) == (pull.wait_s, pull.epoch)

    _run_scenario(fail_engine)


async def test_hold_messages_and_lease_messages_are_passed_on_separately() -> None:
    replica, holds = _Replica(), CallHolds()
    puller = Puller(
        "r",
        replica.scheduler,
        replica.leases,
        cast(Engine, _Meters()),
        EngineCapacity(100, 1, 8, 100, caches_prefixes=True, holds_contexts=True),
        ReplicaSection(),
        lambda error: None,
        "127.0.0.1:1",
        replica.stalls,
        holds=holds,
    )
    mail = ReplicaMail(
        1, ((1, Grant("q", "i", "1-1", "r", 0, 10, 0.0)), (2, HoldContext("1-1", "a", 2.0)))
    )
    replica.scheduler.answer = lambda pull: mail
    puller.epoch = 1
    pull = puller._next_pull(0.0)

    assert pull.capacity.holds_contexts
    assert KeptKv(held_contexts=2, held_kv_tokens=40) == pull.kept
    assert await puller._send_pull(pull)
    assert ["1-1"] == list(replica.leases.held_leases)
    assert Hold("a", 2.0) == holds.take("1-1")


async def test_replica_without_context_holds_does_not_read_held_contexts() -> None:
    class NoKeptKv(_Meters):
        def kept_kv(self) -> KeptKv:
            raise AssertionError("an option that is off costs no call")

    replica = _Replica()
    replica.puller._engine = cast(Engine, NoKeptKv())

    assert replica.puller._next_pull(0.0).kept is None
