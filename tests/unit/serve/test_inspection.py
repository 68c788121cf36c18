"""Each part's report about itself, and the inspection that collects the reports."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import BaseModel
from ray.actor import ActorHandle
from ray.exceptions import RayActorError

from justitia_ray.config import AppConfig, PlacedModel
from justitia_ray.core.actions import Abort, Grant
from justitia_ray.core.events import ApplicationArrived, LeaseProgress
from justitia_ray.errors import ConnectionLost, EngineError
from justitia_ray.protocol.engine import Engine, EngineCapacity, Progress
from justitia_ray.protocol.inspection import (
    IngressReport,
    Inspection,
    ProxyFacts,
    ReplicaReport,
    SchedulerReport,
    ServeReplica,
    ServeReport,
)
from justitia_ray.serve.front import read_front
from justitia_ray.serve.ingress import inspection as gathering
from justitia_ray.serve.ingress.inspection import InspectionCalls
from justitia_ray.serve.ingress.models import ServedModel
from justitia_ray.serve.ingress.queue_client import QueueClient
from justitia_ray.serve.ingress.replica_calls import ReplicaCalls
from justitia_ray.serve.ingress.replica_links import ReplicaLinks
from justitia_ray.serve.replica.lease_table import LeaseTable
from justitia_ray.serve.replica.puller import Puller
from justitia_ray.serve.replica.stalls import StallWatch
from justitia_ray.serve.scheduler import inspection as scheduler_inspection
from justitia_ray.serve.scheduler.service import SchedulerService
from justitia_ray.serve.transport.link import Link
from tests.eventually import eventually
from tests.unit.serve.ingress.http_client import client_of
from tests.unit.serve.scheduler import services
from tests.unit.serve.scheduler.services import Services, opened, pull

CONFIG = AppConfig.parse({"name": "demo", "model": {"name": "m", "path": "none"}})


inference = partial(services.inference, prompt_tokens=50)
"""Inference that needs 60 of the replica's 100 tokens."""


class Desk(Services):
    """Leading service with a manual clock and its inspection report."""

    leader: SchedulerService

    def __init__(self) -> None:
        super().__init__(save_interval_s=0.01)
        self.number = 0

    async def pull(self, **fields: Any) -> Any:
        self.number += 1
        return await self.leader.pull(pull(self.number, **fields))

    async def submit(self, *items: Any) -> Any:
        return await self.leader.submit_many("i", 1, 0, items)

    def let_pass(self, seconds: float) -> None:
        for _ in range(round(10 * seconds)):
            self.hands.at += 0.1
            self.leader.term.clock.beat()

    async def seen(self) -> SchedulerReport:
        self.let_pass(1.1)
        return SchedulerReport.model_validate(self.leader.inspector.report())


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    """Leading service without callers."""
    desk = Desk()
    desk.leader = await desk.start(recovery_s=0.05)
    yield desk
    await desk.close()


def assert_shows(facts: BaseModel, **expected: Any) -> None:
    assert expected == facts.model_dump(include=set(expected))


async def test_scheduler_reports_holders_of_leases_and_inferences(desk: Desk) -> None:
    """The checks compare leases by replica, inferences by ingress, and tags with V."""
    await desk.submit(opened(), inference("q1"), inference("q2"))
    await desk.pull()
    running = LeaseProgress("1-1", 50, 1, running=True)
    await desk.pull(progress=(running,), free_kv_tokens=40, ack=1, address="10.0.0.1:7001")
    seen = await desk.seen()

    application, replica = seen.applications["a"], seen.replicas["r"]
    assert_shows(seen, ready=True, epoch=1, recovering=False, waiting=1, first="q2")
    assert ["1-1"] == list(seen.leases)
    assert_shows(seen.leases["1-1"], request_id="q1", replica_id="r", state="running")
    assert {"q1": "running", "q2": "waiting"} == {
        name: inference.state for name, inference in seen.inferences.items()
    }
    assert_shows(application, state="open", ingress_id="i", waiting=1, in_flight=1, active=True)
    assert application.finish > seen.virtual_time > 0
    assert_shows(replica, leases=1, unexplained_kv_tokens=9, free_for_first=False)
    assert "10.0.0.1:7001" == replica.address
    assert 1.1 == pytest.approx(replica.silent_s)
    assert {"i": 1} == {name: ingress.unread for name, ingress in seen.ingresses.items()}
    assert () == seen.broken_rules


async def test_application_is_shown_with_an_idle_time_of_its_own(desk: Desk) -> None:
    """Otherwise the doctor would misjudge whether the application is late."""
    await desk.submit(opened(), replace(opened("b"), idle_s=30.0))
    seen = await desk.seen()

    assert [None, 30.0] == [seen.applications[name].idle_limit_s for name in "ab"]


async def test_unread_mail_is_counted_from_its_first_message(desk: Desk) -> None:
    """The number of the first unread message shows whether anything was read between two looks."""
    await desk.pull()
    await desk.submit(opened(), inference("q1"))
    await desk.pull()
    before = (await desk.seen()).replicas["r"]
    await desk.pull(ack=1, progress=(LeaseProgress("1-1", 0, 0, running=False),))
    after = (await desk.seen()).replicas["r"]

    assert [(1, 1), (0, None)] == [(r.unread, r.next_unread) for r in (before, after)]


async def test_replica_with_room_for_the_first_application_is_flagged(desk: Desk) -> None:
    """The flag marks a stalled queue; a replica that leaves does not count as free."""
    await desk.pull(draining=True)
    await desk.submit(opened(), inference("q1"))
    leaving = await desk.seen()
    desk.let_pass(0.9)
    later = await desk.seen()

    assert not leaving.replicas["r"].free_for_first
    assert "q1" == leaving.first
    assert [1.1, 3.1] == [pytest.approx(look.replicas["r"].draining_s) for look in (leaving, later)]

    # No event grants the inference: the state is set by hand, as a bug would leave it.
    later_replica = desk.leader.term.driver.core.state.replicas["r"]
    later_replica.draining, later_replica.takes_leases = False, True
    assert (await desk.seen()).replicas["r"].free_for_first


async def test_tag_is_reported_with_its_virtual_clock(desk: Desk) -> None:
    """With `fairness: tenant` the V inside a tenant differs, and F must be compared with it."""
    await desk.leader.configure({"policy": "justitia", "policy_options": {"fairness": "tenant"}})
    other = ApplicationArrived("b", "c", "u", 1.0, 1_000.0, "i")
    await desk.submit(opened(), other, inference("q1"), services.inference("q2", "b"))
    await desk.pull()
    running = [LeaseProgress(f"1-{n}", 20, 9, running=True) for n in (1, 2)]
    await desk.pull(progress=tuple(running), free_kv_tokens=40)
    seen = await desk.seen()

    assert len({seen.applications["a"].clock, seen.applications["b"].clock, seen.virtual_time}) > 1
    assert [True, True] == [a.active and a.finish > a.clock for a in seen.applications.values()]


async def test_inspections_within_a_second_share_one_result(desk: Desk) -> None:
    """Otherwise any caller of the port could keep the scheduler busy with inspections."""
    await desk.seen()
    await desk.submit(opened())
    desk.let_pass(0.9)

    assert {} == desk.leader.inspector.report()["applications"]
    assert ["a"] == list((await desk.seen()).applications)


async def test_long_tables_are_marked_as_cut(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is bounded, and missing rows prove nothing."""
    monkeypatch.setattr(scheduler_inspection, "MAX_ENTRIES", 2)
    monkeypatch.setattr(scheduler_inspection, "_MAX_CHECKED", 2)
    await desk.submit(opened(), *(inference(f"q{number}") for number in range(5)))
    seen = await desk.seen()

    assert ["q0", "q1"] == list(seen.inferences)
    assert_shows(seen, left_out={"inferences": 3}, waiting=5, broken_rules=())
    assert "5 inferences; they are looked at up to 2" == seen.unchecked_rules


async def test_corrupt_state_is_still_inspected(desk: Desk) -> None:
    """An application without an account fails the account checks; the other checks still run."""
    await desk.submit(opened(), inference("q1"))
    await desk.pull()
    del desk.leader.term.driver.core.ledger.fair_share.accounts["a"]
    seen = await desk.seen()
    broken = dict(rule.split(": ", 1) for rule in seen.broken_rules)

    assert "either live or with an account" in broken["accounts_are_of_live_applications"]
    assert "KeyError: 'a'" == broken["service_is_what_was_metered"]
    assert {} == seen.applications
    assert ["1-1"] == list(seen.leases)


async def test_store_is_reported_as_the_scheduler_sees_it(desk: Desk) -> None:
    """The store's kind selects the checks; the age of a save shows what would be lost."""
    await eventually(lambda: desk.leader.inspector.status().saves > 0, "the first save")
    store = (await desk.seen()).store

    assert store is not None
    assert_shows(store, kind="embedded", trouble=None, save_interval_s=0.01)
    assert store.saves > 0
    assert store.saved_s_ago is not None
    assert 0 <= store.saved_s_ago < 60


# --- replicas


async def own_view(trouble: EngineError | None = None) -> ReplicaReport:
    """Return the report of a replica that holds lease `1-1` and the aborted lease `1-2`."""

    def check() -> None:
        if trouble is not None:
            raise trouble

    meters = SimpleNamespace(
        progress=lambda lease_id: Progress(5, 3),
        release=lambda lease_id: Progress(5, 3),
        free_kv_tokens=lambda: 60,
        check=check,
    )
    engine = cast(Engine, meters)
    lease_table = LeaseTable("r", engine, 1.0)
    capacity = EngineCapacity(100, 1, 8, 100)
    puller = Puller(
        "r",
        None,
        lease_table,
        engine,
        capacity,
        CONFIG.replica,
        lambda error: None,
        "127.0.0.1:1",
        StallWatch(CONFIG.replica),
    )
    grants = [Grant(f"q{n}", "i", f"1-{n}", "r", 7, 10, 0.0) for n in (1, 2, 3)]
    lease_table.read_messages(grants)

    async def run() -> None:
        async with lease_table.hold_lease("1-2"):
            await asyncio.Event().wait()

    async with lease_table.hold_lease("1-3"):
        pass
    call = asyncio.create_task(run())
    await asyncio.sleep(0)
    lease_table.read_messages([Abort("r", "1-2")])
    own = puller.report()
    await asyncio.gather(call, return_exceptions=True)
    return own


async def test_replica_reports_held_leases_and_unconfirmed_ends() -> None:
    """A lease is missing at its replica only if its end is not being reported either."""
    own = await own_view()

    assert {"1-1": ("armed", False), "1-2": ("running", True)} == {
        name: (held.state, held.aborted) for name, held in own.held.items()
    }
    assert_shows(own, unconfirmed=("1-3",), kv_tokens=100, free_kv_tokens=60, engine=None, epoch=0)


async def test_replica_says_why_its_engine_cannot_go_on() -> None:
    """The reason is only in the process that is about to exit."""
    assert "out of memory" == (await own_view(EngineError("out of memory"))).engine


# --- gathering


async def inspect_replica(replica_id: str) -> dict[str, Any]:
    """Answer for `r1`, report `r2` as gone, and hang for `r3`."""
    if replica_id == "r2":
        raise ConnectionLost("the connection to r2 is lost")
    if replica_id == "r3":
        await asyncio.Event().wait()
    meters = {"kv_tokens": 100, "free_kv_tokens": 100}
    return {"epoch": 3, "draining": False, "engine": None, **meters}


async def scheduler_of_two() -> dict[str, Any]:
    replica = {"silent_s": 0.1, "kv_tokens": 100}
    heard_of = {"r1": {"address": "10.0.0.1:7001"} | replica, "r2": replica}
    return {"ready": True, "epoch": 3, "replicas": heard_of}


async def _never(address: str, target: str) -> Link:
    raise AssertionError("no connection is wanted here")


def calls(
    scheduler: Callable[[], Awaitable[Any]] = scheduler_of_two, links: ReplicaLinks | None = None
) -> InspectionCalls:
    """Return an ingress's inspection calls; Serve runs r1 and r3 and starts r4.

    One inference of the ingress runs, and one waits.
    """
    inferences = {
        "q1": SimpleNamespace(held_lease=lambda: "3-1"),
        "q2": SimpleNamespace(held_lease=lambda: None),
    }
    links = ReplicaLinks(_never) if links is None else links
    queue = SimpleNamespace(
        session=SimpleNamespace(ingress_id="ingress-1", epoch=3),
        pending=SimpleNamespace(inferences=inferences, applications={"a": 1, "b": 2}),
    )
    return InspectionCalls(
        PlacedModel(CONFIG, "Replica", "Predictor"),
        "demo",
        cast(ActorHandle, SimpleNamespace(inspect=SimpleNamespace(remote=scheduler))),
        cast(ReplicaCalls, SimpleNamespace(inspect=inspect_replica, links=links)),
        cast(QueueClient, queue),
    )


@pytest.fixture(autouse=True)
def _serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Serve's controller answer at once, with short timeouts."""
    replicas = {"r1": "RUNNING", "r3": "RUNNING", "r4": "STARTING"}
    seen = ServeReport(
        nodes=1,
        replicas={
            name: ServeReplica(state=state, node_ip="10.0.0.1") for name, state in replicas.items()
        },
        ingresses=1,
        predictors=1,
    )
    monkeypatch.setattr(gathering, "_seen_by_serve", lambda name, placed: seen)
    monkeypatch.setattr(gathering, "_REPLICA_S", 0.02)
    monkeypatch.setattr(gathering, "_SCHEDULER_S", 0.02)


async def test_all_parts_are_inspected_and_silent_ones_listed() -> None:
    """A replica that only Serve lists may be the one that hangs."""
    found = await calls().inspect()

    silent = {"r2": "ConnectionLost: the connection to r2 is lost", "r3": "no answer within 0.02 s"}
    assert_shows(found, name="demo", model="m", silent=silent)
    assert ["r1"] == list(found.replicas)
    own = IngressReport(
        ingress_id="ingress-1",
        epoch=3,
        open_applications=2,
        tickets={"q1": False, "q2": True},
        max_outstanding=20_000,
        front=read_front(),
    )
    assert own == found.ingress


async def test_uncalled_replica_is_inspected_at_the_schedulers_address() -> None:
    """An ingress learns addresses from grants and has none without traffic."""
    dialled: list[tuple[str, str]] = []

    async def dial(address: str, target: str) -> Link:
        dialled.append((address, target))
        raise ConnectionLost("not needed")

    links = ReplicaLinks(dial)
    await calls(links=links).inspect()
    with pytest.raises(ConnectionLost, match="not needed"):
        await links.link_to("r1")

    assert [("10.0.0.1:7001", "r1")] == dialled


async def hangs() -> Any:
    await asyncio.Event().wait()


async def is_gone() -> Any:
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
    """An inspection is made during failures, so the other parts are still reported."""
    found = await calls(scheduler).inspect()

    assert found.scheduler is None
    assert reason == found.silent["scheduler"]
    assert ["r1"] == list(found.replicas)


async def test_inspections_at_once_are_one() -> None:
    """Ten operators who inspect one failure send one set of requests."""
    asked = 0

    async def counting() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        return await scheduler_of_two()

    several = calls(counting)
    await asyncio.gather(*(several.inspect() for _ in range(10)))

    assert 1 == asked


async def test_path_returns_the_doctors_input() -> None:
    nothing: Any = None
    async with client_of(ServedModel(CONFIG, nothing, nothing, nothing, calls())) as client:
        answer = await client.get("/v1/examination")

    assert 200 == answer.status_code
    found = Inspection.model_validate(json.loads(answer.content))
    assert {"r1", "r2"} == set((await scheduler_of_two())["replicas"])
    assert found.scheduler is not None
    assert ["r1", "r2"] == list(found.scheduler.replicas)


@pytest.mark.parametrize(
    ("http_options", "tls"),
    [
        (None, None),
        ({"host": "0.0.0.0"}, False),
        ({"ssl_keyfile": None, "ssl_certfile": None}, False),
        ({"ssl_keyfile": "key.pem", "ssl_certfile": "certificate.pem"}, True),
    ],
)
def test_certificates_of_serve_are_seen_in_its_http_options(
    http_options: dict[str, Any] | None, tls: bool | None
) -> None:
    """The options show what was set; a Serve without TLS options is not reported as plaintext."""
    assert gathering._asks_for_tls(http_options) is tls


async def test_addresses_that_a_proxy_would_catch_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Calls to the cluster's own nodes would fail at a proxy that knows only the world outside."""
    monkeypatch.setenv("http_proxy", "http://user:secret@proxy:3128")
    monkeypatch.setenv("no_proxy", "localhost")

    proxied = (await calls().inspect()).ingress.proxied

    assert ProxyFacts(variable="http_proxy", addresses=("10.0.0.1",)) == proxied
