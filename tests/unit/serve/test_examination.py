"""What the parts say of themselves when they are examined, and how it is gathered."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI
from ray.actor import ActorHandle
from ray.exceptions import RayActorError

from justitia_ray.app_args import PlacedModel
from justitia_ray.config import parse_app_config
from justitia_ray.core.actions import Abort, Grant
from justitia_ray.core.entities import ReplicaCapacity
from justitia_ray.core.events import ApplicationArrived, InferenceSubmitted, LeaseProgress
from justitia_ray.errors import EngineError, ReplicaGone
from justitia_ray.protocol.examination import (
    Examination,
    ReplicaOwn,
    SchedulerSeen,
    ServeReplica,
    ServeSeen,
)
from justitia_ray.protocol.messages import Pull
from justitia_ray.serve import examination, examination_calls
from justitia_ray.serve.dispatcher import Dispatcher
from justitia_ray.serve.engine import Engine, EngineCapacity, Progress
from justitia_ray.serve.examination import examine_replica
from justitia_ray.serve.examination_calls import ExaminationCalls
from justitia_ray.serve.examination_http import add_examination
from justitia_ray.serve.gateway import Gateway
from justitia_ray.serve.lease_desk import LeaseDesk
from justitia_ray.serve.models import ServedModel, ServedModels
from justitia_ray.serve.puller import Puller
from justitia_ray.serve.replica_calls import ReplicaCalls
from justitia_ray.serve.scheduler_calls import SchedulerCalls
from justitia_ray.serve.scheduler_service import SchedulerService
from justitia_ray.serve.steady_clock import SteadyClock
from justitia_ray.store.scheduler_store import SchedulerStore
from tests.eventually import eventually

from .memory_store import MemoryStore

CONFIG = parse_app_config(
    {
        "name": "demo",
        "model": {"name": "m", "path": "none"},
        "scheduler": {"recovery_s": 0.05},
        "store": {"save_interval_s": 0.01},
    }
)


class Desk:
    """A service in office, its clock, and what it says of itself."""

    def __init__(self) -> None:
        self._at = 100.0
        self._clock = SteadyClock(lambda: self._at)
        self.service = SchedulerService(
            CONFIG,
            cast(SchedulerStore, MemoryStore()),
            lambda reason: None,
            clock=self._clock,
        )
        self.number = 0

    async def pull(self, replica_id: str = "r", **fields: Any) -> Any:
        """Let a replica with room for 100 tokens pull."""
        self.number += 1
        values: dict[str, Any] = {
            "ack": 0,
            "capacity": ReplicaCapacity(100),
            "free_kv_tokens": 100,
            "progress": (),
            "finished": (),
            "preemptions": 0,
            "wait_s": 0.0,
        }
        return await self.service.pull(Pull(replica_id, 1, self.number, **(values | fields)))

    async def submit(self, *items: Any) -> Any:
        """Let ingress `i` submit."""
        return await self.service.submit_many("i", 1, 0, items)

    def let_pass(self, seconds: float) -> None:
        """Let time pass in which the process runs."""
        for _ in range(round(10 * seconds)):
            self._at += 0.1
            self._clock.beat()

    async def seen(self) -> SchedulerSeen:
        """Examine it, a second after the last time."""
        self.let_pass(1.1)
        return SchedulerSeen.model_validate(await self.service.examine())


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    """A service in office, which nobody has called."""
    desk = Desk()
    await desk.service.start()
    yield desk
    await desk.service.stop()


def opened(name: str = "a") -> ApplicationArrived:
    """Return the opening of an application, of whose texts nothing is known here."""
    return ApplicationArrived(name, "c", "t", 1.0, 1_000.0, "i")


def inference(request_id: str) -> InferenceSubmitted:
    """Return an inference that needs 60 of the replica's 100 tokens."""
    return InferenceSubmitted(request_id, "a", "0", "i", 50, 10, 10)


async def test_scheduler_says_who_holds_what(desk: Desk) -> None:
    """What the checks compare: leases by replica, inferences by ingress, tags against V."""
    await desk.submit(opened(), inference("q1"), inference("q2"))
    await desk.pull()
    running = LeaseProgress("1-1", 50, 1, running=True)
    await desk.pull(progress=(running,), free_kv_tokens=40, ack=1)
    seen = await desk.seen()

    assert (True, 1, False, 1, "q2") == (
        seen.ready,
        seen.epoch,
        seen.recovering,
        seen.waiting,
        seen.first,
    )
    assert {"1-1": ("q1", "r", "running")} == {
        name: (lease.request_id, lease.replica_id, lease.state)
        for name, lease in seen.leases.items()
    }
    assert {"q1": "running", "q2": "waiting"} == {
        name: inference.state for name, inference in seen.inferences.items()
    }
    application, replica = seen.applications["a"], seen.replicas["r"]
    assert ("open", "i", 1, 1, True) == (
        application.state,
        application.ingress_id,
        application.waiting,
        application.in_flight,
        application.active,
    )
    assert application.finish > seen.virtual_time > 0
    assert (("1-1",), 1, 9) == (replica.named, replica.leases, replica.unexplained_kv_tokens)
    assert 1.1 == pytest.approx(replica.silent_s)
    assert not replica.free_for_first
    assert {"i": 1} == {name: ingress.unread for name, ingress in seen.ingresses.items()}
    assert () == seen.broken_rules


async def test_unread_mail_is_counted_from_its_first_message(desk: Desk) -> None:
    """Two looks tell by the number of the first whether anything was read between them."""
    await desk.pull()
    await desk.submit(opened(), inference("q1"))
    await desk.pull()
    before = (await desk.seen()).replicas["r"]
    await desk.pull(ack=1, progress=(LeaseProgress("1-1", 0, 0, running=False),))
    after = (await desk.seen()).replicas["r"]

    assert [(1, 1), (0, None)] == [(r.unread, r.next_unread) for r in (before, after)]


async def test_replica_that_is_free_for_what_is_first_is_said_to_be(desk: Desk) -> None:
    """The sign of a queue that stands still; one that leaves is not free."""
    await desk.pull(draining=True)
    await desk.submit(opened(), inference("q1"))
    leaving = await desk.seen()
    desk.let_pass(0.9)
    later = await desk.seen()

    assert not leaving.replicas["r"].free_for_first
    assert "q1" == leaving.first
    assert [1.1, 3.1] == [pytest.approx(look.replicas["r"].draining_s) for look in (leaving, later)]

    # No event grants it: the state is made by hand, as a bug would make it.
    later_replica = desk.service._core.state.replicas["r"]
    later_replica.draining = False
    assert (await desk.seen()).replicas["r"].free_for_first


async def test_tag_is_told_with_the_clock_that_it_is_of(desk: Desk) -> None:
    """Under `fairness: tenant` V inside a tenant is another than V, and F is to be held to it."""
    await desk.service.configure({"policy": "justitia", "policy_options": {"fairness": "tenant"}})
    other = ApplicationArrived("b", "c", "u", 1.0, 1_000.0, "i")
    await desk.submit(
        opened(), other, inference("q1"), InferenceSubmitted("q2", "b", "0", "i", 20, 10, 10)
    )
    await desk.pull()
    running = [LeaseProgress(f"1-{n}", 20, 9, running=True) for n in (1, 2)]
    await desk.pull(progress=tuple(running), free_kv_tokens=40)
    seen = await desk.seen()

    assert len({seen.applications["a"].clock, seen.applications["b"].clock, seen.virtual_time}) > 1
    assert [True, True] == [a.active and a.finish > a.clock for a in seen.applications.values()]


async def test_looks_within_a_second_are_one(desk: Desk) -> None:
    """Anybody who reaches the port could else keep the scheduler busy with examinations."""
    await desk.seen()
    await desk.submit(opened())
    desk.let_pass(0.9)

    assert {} == (await desk.service.examine())["applications"]
    assert ["a"] == list((await desk.seen()).applications)


async def test_long_tables_are_cut_and_say_so(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is bounded, and nothing is concluded from what is missing in it."""
    monkeypatch.setattr(examination, "MOST_ENTRIES", 2)
    monkeypatch.setattr(examination, "_MOST_CHECKED", 2)
    await desk.submit(opened(), *(inference(f"q{number}") for number in range(5)))
    seen = await desk.seen()

    assert ["q0", "q1"] == list(seen.inferences)
    assert {"inferences": 3} == seen.left_out
    assert (5, (), "5 inferences; they are looked at up to 2") == (
        seen.waiting,
        seen.broken_rules,
        seen.unchecked_rules,
    )


async def test_broken_rule_is_named_and_the_others_are_looked_at(desk: Desk) -> None:
    """A state that contradicts itself is told, not raised: the scheduler goes on."""
    await desk.submit(opened(), inference("q1"))
    await desk.pull()
    desk.service._core.state.inferences["q1"].lease_id = "gone"
    seen = await desk.seen()

    assert ["leases_agree"] == [broken.partition(":")[0] for broken in seen.broken_rules]
    assert "gone" in seen.broken_rules[0]


async def test_worst_state_is_examined_too(desk: Desk) -> None:
    """An application without an account breaks what looks at accounts; the rest is still told."""
    await desk.submit(opened(), inference("q1"))
    await desk.pull()
    del desk.service._core.order.fair_share.accounts["a"]
    seen = await desk.seen()
    broken = dict(rule.split(": ", 1) for rule in seen.broken_rules)

    assert "either live or with an account" in broken["accounts_are_of_live_applications"]
    assert "KeyError: 'a'" == broken["service_is_what_was_metered"]
    assert {} == seen.applications
    assert ["1-1"] == list(seen.leases)


async def test_scheduler_that_waits_for_its_store_says_why() -> None:
    """It is examined most when it is not in office, and must not wait then."""
    store = MemoryStore()
    store.away = True
    service = SchedulerService(CONFIG, cast(SchedulerStore, store), lambda reason: None)
    starting = asyncio.create_task(service.start())
    await asyncio.sleep(0)
    seen = SchedulerSeen.model_validate(await service.examine())
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await service.stop()

    assert (False, "Redis at memory: away") == (seen.ready, seen.degraded)


async def test_store_is_said_as_the_scheduler_sees_it(desk: Desk) -> None:
    """Its kind decides which checks there are; the age of a save says what is at risk."""

    async def has_saved() -> bool:
        return bool((await desk.service.status())["saves"] > 0)

    await eventually(has_saved, "the first save")
    store = (await desk.seen()).store

    assert store is not None
    assert ("embedded", None, 0.01) == (store.kind, store.trouble, store.save_interval_s)
    assert store.saves > 0
    assert store.saved_s_ago is not None
    assert 0 <= store.saved_s_ago < 60


# --- replicas


class Meters:
    """An engine as far as an examination reads it."""

    def __init__(self, trouble: EngineError | None = None) -> None:
        self._trouble = trouble

    def progress(self, lease_id: str) -> Progress:
        """Every lease has used as much."""
        return Progress(5, 3)

    def release(self, lease_id: str) -> Progress:
        """Forget a lease."""
        return self.progress(lease_id)

    def free_kv_tokens(self) -> int:
        """Return what no sequence holds."""
        return 60

    def check(self) -> None:
        """Raise what is wrong."""
        if self._trouble is not None:
            raise self._trouble


async def own_view(trouble: EngineError | None = None) -> ReplicaOwn:
    """Return what a replica says that holds `1-1` and `1-2`, of which the second was aborted."""
    engine = cast(Engine, Meters(trouble))
    lease_desk = LeaseDesk("r", engine, 1.0)
    capacity = EngineCapacity(100, 1, 8, 100)
    puller = Puller("r", None, lease_desk, engine, capacity, CONFIG.replica, lambda error: None)
    grants = [Grant(f"q{n}", "i", f"1-{n}", "r", 7, 10, 0.0) for n in (1, 2, 3)]
    lease_desk.read(grants)

    async def run() -> None:
        async with lease_desk.hold("1-2"):
            await asyncio.Event().wait()

    async with lease_desk.hold("1-3"):
        pass
    call = asyncio.create_task(run())
    await asyncio.sleep(0)
    lease_desk.read([Abort("r", "1-2")])
    own = ReplicaOwn.model_validate(examine_replica(puller, lease_desk, engine, capacity))
    await asyncio.gather(call, return_exceptions=True)
    return own


async def test_replica_says_what_it_holds_and_what_it_has_yet_to_confirm() -> None:
    """A lease is missing at its replica only if its end is not on the way either."""
    own = await own_view()

    assert {"1-1": ("armed", False), "1-2": ("running", True)} == {
        name: (held.state, held.aborted) for name, held in own.held.items()
    }
    assert (("1-3",), 100, 60, None, 0) == (
        own.unconfirmed,
        own.kv_tokens,
        own.free_kv_tokens,
        own.engine,
        own.epoch,
    )


async def test_replica_says_why_its_engine_cannot_go_on() -> None:
    """The reason is in the process that is about to leave, and soon nowhere else."""
    assert "out of memory" == (await own_view(EngineError("out of memory"))).engine


# --- gathering


class Remote:
    """A method of a handle."""

    def __init__(self, answer: Callable[[], Awaitable[Any]]) -> None:
        self.remote = answer


class Scheduler:
    """A scheduler's handle that answers an examination."""

    def __init__(self, answer: Callable[[], Awaitable[Any]]) -> None:
        self.examine = Remote(answer)


class Ticket:
    """What an ingress waits for."""

    def __init__(self, lease_id: str | None) -> None:
        self._lease_id = lease_id

    def held_lease(self) -> str | None:
        """Return the lease in use."""
        return self._lease_id


class Queue:
    """A dispatcher as far as an examination reads it."""

    ingress_id = "ingress-1"
    epoch = 3

    def tickets(self) -> dict[str, Ticket]:
        """One runs and one waits."""
        return {"q1": Ticket("3-1"), "q2": Ticket(None)}

    def open_applications(self) -> int:
        """Return a number."""
        return 2


class Replicas:
    """Calls to replicas: `r1` answers, `r2` is gone, `r3` hangs."""

    async def examine(self, replica_id: str) -> dict[str, Any]:
        """Answer, or do not."""
        if replica_id == "r2":
            raise ReplicaGone("", "r2")
        if replica_id == "r3":
            await asyncio.Event().wait()
        return {
            "epoch": 3,
            "draining": False,
            "engine": None,
            "kv_tokens": 100,
            "free_kv_tokens": 100,
        }


async def scheduler_of_two() -> dict[str, Any]:
    """The scheduler hears of r1 and r2."""
    replica = {"silent_s": 0.1, "kv_tokens": 100}
    return {"ready": True, "epoch": 3, "replicas": {"r1": replica, "r2": replica}}


def calls(scheduler: Callable[[], Awaitable[Any]] = scheduler_of_two) -> ExaminationCalls:
    """Return the calls of an ingress of which Serve runs r1 and r3, and starts r4."""
    return ExaminationCalls(
        PlacedModel(CONFIG, "Replica", "Predictor"),
        "demo",
        cast(ActorHandle, Scheduler(scheduler)),
        cast(ReplicaCalls, Replicas()),
        cast(Dispatcher, Queue()),
    )


@pytest.fixture(autouse=True)
def _serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve's controller answers at once, and nobody is waited for long."""
    replicas = {"r1": "RUNNING", "r3": "RUNNING", "r4": "STARTING"}
    seen = ServeSeen(
        nodes=1,
        replicas={name: ServeReplica(state=state) for name, state in replicas.items()},
        ingresses=1,
        predictors=1,
    )
    monkeypatch.setattr(examination_calls, "_seen_by_serve", lambda name, placed: seen)
    monkeypatch.setattr(examination_calls, "_REPLICA_S", 0.02)
    monkeypatch.setattr(examination_calls, "_SCHEDULER_S", 0.02)


async def test_all_that_should_answer_are_asked_and_silence_is_noted() -> None:
    """Replicas of the scheduler and of Serve: one that only Serve knows may be the hung one."""
    found = await calls().examine()

    assert ("demo", "m") == (found.name, found.model)
    assert ["r1"] == list(found.replicas)
    assert {
        "r2": "ReplicaGone: replica r2 is gone",
        "r3": "no answer within 0.02 s",
    } == found.silent
    assert ("ingress-1", 3, {"q1": False, "q2": True}) == (
        found.ingress.ingress_id,
        found.ingress.epoch,
        found.ingress.tickets,
    )


async def hangs() -> Any:
    """The scheduler stands still."""
    await asyncio.Event().wait()


async def is_gone() -> Any:
    """The scheduler's process is gone."""
    raise RayActorError


@pytest.mark.parametrize(
    ("scheduler", "reason"),
    [
        (hangs, "no answer within 0.02 s"),
        (is_gone, "its process is gone or being started again"),
    ],
)
async def test_silent_scheduler_is_a_result(
    scheduler: Callable[[], Awaitable[Any]], reason: str
) -> None:
    """It is examined because something is wrong: an error would say less than what is there."""
    found = await calls(scheduler).examine()

    assert found.scheduler is None
    assert reason == found.silent["scheduler"]
    assert ["r1"] == list(found.replicas)


async def test_examinations_at_once_are_one() -> None:
    """Ten operators who look at the same trouble ask everybody once."""
    asked = 0

    async def counting() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        return await scheduler_of_two()

    several = calls(counting)
    await asyncio.gather(*(several.examine() for _ in range(10)))

    assert 1 == asked


async def test_path_answers_with_what_the_doctor_reads() -> None:
    """Both sides go by one schema, and it is JSON."""
    app = FastAPI()
    model = ServedModel(CONFIG, cast(Gateway, None), cast(SchedulerCalls, None), None, calls())
    add_examination(app, ServedModels([model]))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        answer = await client.get("/v1/examination")

    assert 200 == answer.status_code
    found = Examination.model_validate(json.loads(answer.content))
    assert {"r1", "r2"} == set((await scheduler_of_two())["replicas"])
    assert found.scheduler is not None
    assert ["r1", "r2"] == list(found.scheduler.replicas)
