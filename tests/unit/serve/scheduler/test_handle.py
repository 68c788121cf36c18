"""The connection to the scheduler: older releases are replaced, and calls go to the successor."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import wraps
from itertools import pairwise
from typing import Any, TypeAlias, cast

import pytest
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from justitia_ray import __version__
from justitia_ray.config import AppConfig
from justitia_ray.errors import (
    ConnectionLost,
    RemoteFailure,
    SchedulerSuperseded,
    StoreError,
    UnknownModel,
)
from justitia_ray.serve.scheduler import handle
from justitia_ray.serve.scheduler.handle import SchedulerLink
from justitia_ray.serve.transport.handshake import Key, Keyring, Offer
from tests.harness.simulation.virtual_loop import run_virtually
from tests.unit.serve.actor_handle import ActorHandle

Find: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]

_NOTICED_AFTER_S = 1.2
"""Delay in seconds after which Ray reports a failed call."""
KEY = Key.new()


class RestartingActor(ActorHandle):
    """Fake actor that is down until a given time and fails calls as late as Ray does."""

    def __init__(self, back_at: float, *, leads_at: float = 0.0, for_good: bool = False) -> None:
        self.back_at = back_at
        self.error: Exception | None = None
        """Error with which a running scheduler reports that it cannot lead."""
        self._leads_at = leads_at
        self._for_good = for_good
        self.asked = 0
        self.address = "127.0.0.1:1"

    async def _link(self) -> Offer:
        self.asked += 1
        if self._for_good:
            raise ActorDiedError
        if _now() < self.back_at:
            await asyncio.sleep(_NOTICED_AFTER_S)
            raise ActorUnavailableError("away", b"0" * 16)
        await asyncio.sleep(self._leads_at - _now())
        if self.error is not None:
            why = str(self.error)
            raise RayTaskError("link", why, self.error, proctitle="", pid=1, ip="0.0.0.0")
        return Offer(self.address, "scheduler", KEY)


class Connection:
    """Connection that the test can cut."""

    def __init__(self) -> None:
        self.is_lost = False
        self.closed = 0
        self.is_superseded = False

    async def call(self, method: str, *arguments: Any) -> Any:
        if self.is_lost:
            raise ConnectionLost("cut")
        if self.is_superseded:
            raise SchedulerSuperseded("another one leads")
        if method == "refuse_lease":
            raise UnknownModel("no")
        return arguments

    async def close(self) -> None:
        self.is_lost = True
        self.closed += 1


class LinkRig:
    """Link to an actor, and the connections that it opened."""

    def __init__(self, actor: RestartingActor) -> None:
        self.actor = actor
        self.keyring = Keyring()
        self.connections: list[Connection] = []
        self.refusals = 0
        """Number of connection attempts that fail first."""
        self.dialled_at: list[float] = []
        self.link = SchedulerLink(cast(ActorHandle, actor), self.keyring, self._dial)

    async def _dial(self, address: str, target: str) -> Any:
        assert (address, target) == (self.actor.address, "scheduler")
        assert (KEY,) == self.keyring.keys
        self.dialled_at.append(_now())
        if self.refusals:
            self.refusals -= 1
            raise ConnectionLost("no route")
        self.connections.append(Connection())
        return self.connections[-1]

    def cut_connection(self, away_s: float) -> None:
        self.actor.back_at = _now() + away_s
        self.connections[-1].is_lost = True

    async def check_answer_in_time(self) -> None:
        """Check that a call is answered within 0.1 s of the actor's return."""
        assert ("a",) == await self.link.call("pull", "a")
        assert 0.0 <= _now() - self.actor.back_at <= 0.1 + 1e-9


def _now() -> float:
    return asyncio.get_running_loop().time()


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on an event loop whose clock jumps to the next deadline."""

    @wraps(test)
    def run_test(*arguments: Any, **named: Any) -> None:
        run_virtually(test(*arguments, **named))

    return run_test


@in_virtual_time
async def test_callers_find_a_new_scheduler_within_a_tenth_of_a_second() -> None:
    """Repeated calls through Ray would find a new scheduler up to 1.2 s late."""
    rig = LinkRig(RestartingActor(_now() + 3.05))
    await asyncio.gather(*(rig.check_answer_in_time() for _ in range(2)))

    assert ("b",) == await rig.link.call("pull", "b")
    assert 1 == len(rig.connections)
    assert rig.actor.asked < 35  # Both callers have waited for one answer.


@in_virtual_time
async def test_call_made_just_before_a_scheduler_returns_does_not_wait_for_ray() -> None:
    """Ray reports the failure of the previous call a second late."""
    rig = LinkRig(RestartingActor(_now() + 3.0))
    first = asyncio.create_task(rig.check_answer_in_time())
    await asyncio.sleep(2.95)
    await asyncio.gather(first, rig.check_answer_in_time())


@in_virtual_time
async def test_open_scheduler_connection_makes_no_ray_actor_call() -> None:
    """Answers, errors and refusals arrive over the connection."""
    rig = LinkRig(RestartingActor(0.0))
    for _ in range(10):
        assert ("word",) == await rig.link.call("pull", "word")
    with pytest.raises(UnknownModel):
        await rig.link.call("refuse_lease")

    assert (1, 1) == (rig.actor.asked, len(rig.connections))


@in_virtual_time
async def test_connection_moves_from_a_superseded_to_the_registered_scheduler() -> None:
    """The process that Ray considers dead may run on with a working connection."""
    rig = LinkRig(RestartingActor(0.0))
    await rig.link.call("pull")
    (old,) = rig.connections
    old.is_superseded = True
    for _ in range(3):  # Ray knows no other scheduler, so the connection stays.
        with pytest.raises(SchedulerSuperseded):
            await rig.link.call("pull")
    assert [old] == rig.connections

    rig.actor.address = "127.0.0.1:2"
    assert ("word",) == await rig.link.call("pull", "word")
    assert [True, False] == [connection.is_lost for connection in rig.connections]


@in_virtual_time
async def test_scheduler_waiting_for_redis_receives_a_bounded_number_of_calls() -> None:
    """A scheduler that waits for Redis must answer all pending calls once it leads."""
    began = _now()
    rig = LinkRig(RestartingActor(began + 1.0, leads_at=began + 600.0))
    await rig.link.call("pull")

    assert 600.0 <= _now() - began < 600.1 + 1e-9
    assert 10 < rig.actor.asked < 60


@in_virtual_time
async def test_calls_to_a_permanently_dead_scheduler_fail_at_once() -> None:
    """The actor was replaced or shut down, so waiting would not help."""
    began = _now()
    with pytest.raises(ConnectionLost, match="has ended"):
        await LinkRig(RestartingActor(0.0, for_good=True)).link.call("pull")

    assert began == _now()


@in_virtual_time
async def test_scheduler_that_cannot_lead_reports_the_reason() -> None:
    """The scheduler's state is unreadable, or another scheduler leads.

    An internal error must not end the process.
    """
    rig = LinkRig(RestartingActor(0.0))
    rig.actor.error = StoreError("damaged")
    with pytest.raises(StoreError, match="damaged"):
        await rig.link.call("pull")
    rig.actor.error = ZeroDivisionError("ours")
    with pytest.raises(RemoteFailure, match="ours"):
        await rig.link.call("pull")


@in_virtual_time
async def test_second_loss_of_the_scheduler_is_noticed() -> None:
    rig = LinkRig(RestartingActor(0.0))
    await rig.link.call("pull")
    for away_s in (2.0, 5.0):
        rig.cut_connection(away_s)
        await rig.check_answer_in_time()

    assert 3 == len(rig.connections)


def test_failed_connection_to_the_scheduler_is_retried_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While a firewall blocks the port, the log has a few lines instead of five a second."""

    async def call_with_refusals() -> None:
        rig = LinkRig(RestartingActor(0.0))
        rig.refusals = 20
        assert ("a",) == await rig.link.call("pull", "a")
        assert 21 == len(rig.dialled_at)
        assert [0.2] * 20 == [
            pytest.approx(after - before) for before, after in pairwise(rig.dialled_at)
        ]

    run_virtually(call_with_refusals())

    logged = [record for record in caplog.records if "scheduler.unreachable" in record.getMessage()]
    assert 5 == len(logged)  # The 1st, 2nd, 4th, 8th and 16th failure are logged.
    assert "no route" in logged[0].getMessage()


@in_virtual_time
async def test_cancelled_caller_does_not_end_the_search_for_a_scheduler() -> None:
    rig = LinkRig(RestartingActor(_now() + 1.0))
    leaves = asyncio.create_task(rig.link.call("pull"))
    stays = asyncio.create_task(rig.check_answer_in_time())
    await asyncio.sleep(0.5)
    leaves.cancel()
    await stays


@in_virtual_time
async def test_closing_the_handle_ends_the_search_for_a_scheduler() -> None:
    rig = LinkRig(RestartingActor(0.0))
    await rig.link.call("pull")
    rig.cut_connection(1000.0)
    waits = asyncio.create_task(rig.link.call("pull"))
    await asyncio.sleep(0.5)
    await rig.link.close()
    asked = rig.actor.asked
    await asyncio.wait([waits])
    await asyncio.sleep(5.0)

    assert asked == rig.actor.asked
    assert 1 == rig.connections[0].closed


class RunningActor(ActorHandle):
    """Fake scheduler actor of some version with one replica; `done` records calls to it."""

    def __init__(
        self,
        version: str,
        done: list[str],
        *,
        is_gone: bool = False,
        waiting: Iterable[int] = (),
        draining: bool = False,
    ) -> None:
        self.name = version
        self._done = done
        self._is_gone = is_gone
        self._waiting = iter(waiting)
        self._draining = draining

    async def _version(self) -> str:
        if self._is_gone:
            raise ActorDiedError
        return self.name

    async def _status(self) -> dict[str, Any]:
        waiting = next(self._waiting, 0)
        self._done.append(f"{waiting} wait")
        return {"waiting": waiting, "replicas": {"r": {"draining": self._draining}}}

    async def _retire(self) -> None:
        self._done.append(f"{self.name} saves")


@pytest.fixture
def find_scheduler(monkeypatch: pytest.MonkeyPatch) -> Find:
    """Search for the scheduler; Ray's lookups return these actors in turn."""

    def find_among(*actors: RunningActor) -> Coroutine[Any, Any, Any]:
        there = iter(actors)
        monkeypatch.setattr(handle, "get_scheduler", lambda config: next(there))
        monkeypatch.setattr(
            ray, "kill", lambda actor, no_restart: actor._done.append(f"{actor.name} is killed")
        )
        return handle.get_current_scheduler(
            AppConfig.parse({"model": {"name": "m", "path": "none"}})
        )

    return find_among


@pytest.mark.parametrize(
    ("running", "expected"),
    [
        (("0.1.0", __version__), ["0 wait", "0.1.0 saves", "0.1.0 is killed"]),
        ((__version__,), []),
        (("99.0.0",), []),
    ],
    ids=["older", "same", "newer"],
)
async def test_scheduler_of_an_older_release_is_replaced_once_it_has_saved(
    running: tuple[str, ...], expected: list[str], find_scheduler: Find
) -> None:
    done: list[str] = []
    actors = [RunningActor(version, done) for version in running]

    assert actors[-1] is await find_scheduler(*actors)
    assert expected == done


@pytest.mark.parametrize(
    ("waiting", "draining", "looks"),
    [([2, 1, 0], False, 3), ([2], True, 1), ([2] * 1_000, False, 300)],
    ids=["served", "nobody serves them", "never served"],
)
@in_virtual_time
async def test_scheduler_of_an_older_release_stays_while_it_serves_its_queue(
    waiting: list[int], draining: bool, looks: int, find_scheduler: Find
) -> None:
    """Ingresses of the old release find no other scheduler, so their calls would wait forever."""
    done: list[str] = []
    old = RunningActor("0.1.0", done, waiting=waiting, draining=draining)
    await find_scheduler(old, RunningActor(__version__, done))

    assert ["0.1.0 saves", "0.1.0 is killed"] == done[-2:]
    assert looks == pytest.approx(len(done) - 2, abs=1)


@in_virtual_time
async def test_unloadable_scheduler_of_an_older_release_gives_up_its_name(
    find_scheduler: Find,
) -> None:
    """Ray restarts a crashed actor from the old release's module, which no longer exists."""
    gone, current = RunningActor("0.1.0", [], is_gone=True), RunningActor(__version__, [])

    assert current is await find_scheduler(gone, gone, current)
