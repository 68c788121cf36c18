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
from tests.unit.serve.scheduler.services import Services, arrival_of, pull_of

CONFIG = AppConfig.parse({"name": "demo", "model": {"name": "m", "path": "none"}})


inference = partial(services.submission_of, prompt_tokens=50)
"""Inference that needs 60 of the replica's 100 tokens."""


class InspectedService(Services):
    """Leading scheduler service with a manual clock and its inspection report."""

    leader: SchedulerService

    def __init__(self) -> None:
        super().__init__(save_interval_s=0.01)
        self.number = 0

    async def pull_next(self, **fields: Any) -> Any:
        self.number += 1
        return await self.leader.pull(pull_of(self.number, **fields))

    async def submit_items(self, *items: Any) -> Any:
        return await self.leader.submit_many("i", 1, 0, items)

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(10 * seconds)):
            self.hands.at += 0.1
            self.leader.term.clock.beat()

    async def next_report(self) -> SchedulerReport:
        self.pass_time(1.1)
        return SchedulerReport.model_validate(self.leader.inspector.report())


@pytest.fixture
async def inspected() -> AsyncIterator[InspectedService]:
    """Leading scheduler service without callers."""
    inspected = InspectedService()
    inspected.leader = await inspected.start_leader(recovery_s=0.05)
    yield inspected
    await inspected.close()


def assert_fields(facts: BaseModel, **expected: Any) -> None:
    assert expected == facts.model_dump(include=set(expected))


async def test_scheduler_reports_the_processes_that_hold_leases_and_inferences(
    inspected: InspectedService,
) -> None:
    """The doctor compares leases with replicas, and inferences with ingresses."""
    await inspected.submit_items(arrival_of(), inference("q1"), inference("q2"))
    await inspected.pull_next()
    running = LeaseProgress("1-1", 50, 1, running=True)
    await inspected.pull_next(
        progress=(running,), free_kv_tokens=40, ack=1, address="10.0.0.1:7001"
    )
    seen = await inspected.next_report()

    application, replica = seen.applications["a"], seen.replicas["r"]
    assert_fields(seen, ready=True, epoch=1, recovering=False, waiting=1, first="q2")
    assert ["1-1"] == list(seen.leases)
    assert_fields(seen.leases["1-1"], request_id="q1", replica_id="r", state="running")
    assert {"q1": "running", "q2": "waiting"} == {
        name: inference.state for name, inference in seen.inferences.items()
    }
    assert_fields(application, state="open", ingress_id="i", waiting=1, in_flight=1, active=True)
    assert application.finish > seen.virtual_time > 0
    assert_fields(replica, leases=1, unexplained_kv_tokens=9, free_for_first=False)
    assert "10.0.0.1:7001" == replica.address
    assert 1.1 == pytest.approx(replica.silent_s)
    assert {"i": 1} == {name: ingress.unread for name, ingress in seen.ingresses.items()}
    assert () == seen.broken_rules


async def test_application_is_shown_with_its_own_idle_time(inspected: InspectedService) -> None:
    """The doctor needs the idle time to judge whether the application is late."""
    await inspected.submit_items(arrival_of(), replace(arrival_of("b"), idle_s=30.0))
    seen = await inspected.next_report()

    assert [None, 30.0] == [seen.applications[name].idle_limit_s for name in "ab"]


async def test_inspection_reports_the_number_of_the_first_unread_message(
    inspected: InspectedService,
) -> None:
    """The first unread number shows whether anything was read between two reports."""
    await inspected.pull_next()
    await inspected.submit_items(arrival_of(), inference("q1"))
    await inspected.pull_next()
    before = (await inspected.next_report()).replicas["r"]
    await inspected.pull_next(ack=1, progress=(LeaseProgress("1-1", 0, 0, running=False),))
    after = (await inspected.next_report()).replicas["r"]

    assert [(1, 1), (0, None)] == [(r.unread, r.next_unread) for r in (before, after)]


async def test_inspection_flags_a_replica_with_room_for_the_first_application(
    inspected: InspectedService,
) -> None:
    """The flag marks a stalled queue; a replica that is leaving does not count as free."""
    await inspected.pull_next(draining=True)
    await inspected.submit_items(arrival_of(), inference("q1"))
    leaving = await inspected.next_report()
    inspected.pass_time(0.9)
    later = await inspected.next_report()

    assert not leaving.replicas["r"].free_for_first
    assert "q1" == leaving.first
    assert [1.1, 3.1] == [pytest.approx(look.replicas["r"].draining_s) for look in (leaving, later)]

    # No event grants the inference, as if the scheduler had a bug.
    later_replica = inspected.leader.term.driver.core.state.replicas["r"]
    later_replica.draining, later_replica.takes_leases = False, True
    assert (await inspected.next_report()).replicas["r"].free_for_first


async def test_finish_tag_is_reported_with_the_virtual_time(
    inspected: InspectedService,
) -> None:
    """With `fairness: tenant`, each tenant has a virtual clock of its own."""
    await inspected.leader.configure(
        {"policy": "justitia", "policy_options": {"fairness": "tenant"}}
    )
    other = ApplicationArrived("b", "c", "u", 1.0, 1_000.0, "i")
    await inspected.submit_items(
        arrival_of(), other, inference("q1"), services.submission_of("q2", "b")
    )
    await inspected.pull_next()
    running = [LeaseProgress(f"1-{n}", 20, 9, running=True) for n in (1, 2)]
    await inspected.pull_next(progress=tuple(running), free_kv_tokens=40)
    seen = await inspected.next_report()

    assert len({seen.applications["a"].clock, seen.applications["b"].clock, seen.virtual_time}) > 1
    assert [True, True] == [a.active and a.finish > a.clock for a in seen.applications.values()]


async def test_inspections_within_a_second_share_one_result(inspected: InspectedService) -> None:
    """Otherwise any caller of the port could keep the scheduler busy with inspections."""
    await inspected.next_report()
    await inspected.submit_items(arrival_of())
    inspected.pass_time(0.9)

    assert {} == inspected.leader.inspector.report()["applications"]
    assert ["a"] == list((await inspected.next_report()).applications)


async def test_long_tables_are_marked_as_truncated(
    inspected: InspectedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row missing in a truncated table proves nothing."""
    monkeypatch.setattr(scheduler_inspection, "MAX_ENTRIES", 2)
    monkeypatch.setattr(scheduler_inspection, "_MAX_CHECKED", 2)
    await inspected.submit_items(arrival_of(), *(inference(f"q{number}") for number in range(5)))
    seen = await inspected.next_report()

    assert ["q0", "q1"] == list(seen.inferences)
    assert_fields(seen, left_out={"inferences": 3}, waiting=5, broken_rules=())
    assert "5 inferences; they are looked at up to 2" == seen.unchecked_rules


async def test_corrupt_scheduler_state_can_still_be_inspected(inspected: InspectedService) -> None:
    """An application without an account fails the account checks; the other checks still run."""
    await inspected.submit_items(arrival_of(), inference("q1"))
    await inspected.pull_next()
    del inspected.leader.term.driver.core.ledger.fair_share.accounts["a"]
    seen = await inspected.next_report()
    broken = dict(rule.split(": ", 1) for rule in seen.broken_rules)

    assert "either live or with an account" in broken["accounts_are_of_live_applications"]
    assert "KeyError: 'a'" == broken["service_is_what_was_metered"]
    assert {} == seen.applications
    assert ["1-1"] == list(seen.leases)


async def test_scheduler_reports_the_state_of_its_store(inspected: InspectedService) -> None:
    """The kind of store selects the checks; the age of a save shows what would be lost."""
    await eventually(lambda: inspected.leader.inspector.status().saves > 0, "the first save")
    store = (await inspected.next_report()).store

    assert store is not None
    assert_fields(store, kind="embedded", trouble=None, save_interval_s=0.01)
    assert store.saves > 0
    assert store.saved_s_ago is not None
    assert 0 <= store.saved_s_ago < 60


# --- replicas


async def replica_report(trouble: EngineError | None = None) -> ReplicaReport:
    """Return the report of a replica that holds lease `1-1` and the aborted lease `1-2`."""

    def check_engine() -> None:
        if trouble is not None:
            raise trouble

    meters = SimpleNamespace(
        progress=lambda lease_id: Progress(5, 3),
        release=lambda lease_id: Progress(5, 3),
        free_kv_tokens=lambda: 60,
        check=check_engine,
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

    async def hold_aborted_lease() -> None:
        async with lease_table.hold_lease("1-2"):
            await asyncio.Event().wait()

    async with lease_table.hold_lease("1-3"):
        pass
    call = asyncio.create_task(hold_aborted_lease())
    await asyncio.sleep(0)
    lease_table.read_messages([Abort("r", "1-2")])
    own = puller.report()
    await asyncio.gather(call, return_exceptions=True)
    return own


async def test_replica_reports_held_leases_and_unconfirmed_ended_leases() -> None:
    """A lost lease is one that the replica reports neither as held nor as ended."""
    own = await replica_report()

    assert {"1-1": ("armed", False), "1-2": ("running", True)} == {
        name: (held.state, held.aborted) for name, held in own.held.items()
    }
    assert_fields(own, unconfirmed=("1-3",), kv_tokens=100, free_kv_tokens=60, engine=None, epoch=0)


async def test_inspection_reports_why_an_engine_failed() -> None:
    """The reason is known only in the process that is about to exit."""
    assert "out of memory" == (await replica_report(EngineError("out of memory"))).engine


# --- gathering


async def inspect_replica(replica_id: str) -> dict[str, Any]:
    """Answer for `r1`, report `r2` as gone, and hang for `r3`."""
    if replica_id == "r2":
        raise ConnectionLost("the connection to r2 is lost")
    if replica_id == "r3":
        await asyncio.Event().wait()
    meters = {"kv_tokens": 100, "free_kv_tokens": 100}
    return {"epoch": 3, "draining": False, "engine": None, **meters}


async def report_of_two_replicas() -> dict[str, Any]:
    replica = {"silent_s": 0.1, "kv_tokens": 100}
    heard_of = {"r1": {"address": "10.0.0.1:7001"} | replica, "r2": replica}
    return {"ready": True, "epoch": 3, "replicas": heard_of}


async def _fail_to_dial(address: str, target: str) -> Link:
    raise AssertionError("no connection is wanted here")


def inspection_calls(
    scheduler: Callable[[], Awaitable[Any]] = report_of_two_replicas,
    links: ReplicaLinks | None = None,
) -> InspectionCalls:
    """Return an ingress's inspection calls; Ray Serve runs r1 and r3 and starts r4.

    One inference of the ingress runs, and one waits.
    """
    inferences = {
        "q1": SimpleNamespace(held_lease=lambda: "3-1"),
        "q2": SimpleNamespace(held_lease=lambda: None),
    }
    links = ReplicaLinks(_fail_to_dial) if links is None else links
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
def _fake_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ray Serve's controller answer at once, with short timeouts."""
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


async def test_inspection_lists_the_parts_that_do_not_answer() -> None:
    """A replica that only Ray Serve lists may be the one that hangs."""
    found = await inspection_calls().inspect()

    silent = {"r2": "ConnectionLost: the connection to r2 is lost", "r3": "no answer within 0.02 s"}
    assert_fields(found, name="demo", model="m", silent=silent)
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


async def test_replica_is_inspected_at_the_address_that_the_scheduler_knows() -> None:
    """An ingress learns addresses from grants and has none without traffic."""
    dialled: list[tuple[str, str]] = []

    async def record_dial(address: str, target: str) -> Link:
        dialled.append((address, target))
        raise ConnectionLost("not needed")

    links = ReplicaLinks(record_dial)
    await inspection_calls(links=links).inspect()
    with pytest.raises(ConnectionLost, match="not needed"):
        await links.link_to("r1")

    assert [("10.0.0.1:7001", "r1")] == dialled


async def hang_forever() -> Any:
    await asyncio.Event().wait()


async def raise_actor_died() -> Any:
    raise RayActorError


@pytest.mark.parametrize(
    ("scheduler", "reason"),
    [
        (hang_forever, "no answer within 0.02 s"),
        (raise_actor_died, "its process is gone or being started again"),
    ],
)
async def test_inspection_reports_a_scheduler_that_does_not_answer(
    scheduler: Callable[[], Awaitable[Any]], reason: str
) -> None:
    """Inspections are made during failures, so the other parts are still reported."""
    found = await inspection_calls(scheduler).inspect()

    assert found.scheduler is None
    assert reason == found.silent["scheduler"]
    assert ["r1"] == list(found.replicas)


async def test_concurrent_inspections_share_one_set_of_requests() -> None:
    """Ten operators may inspect the same failure."""
    asked = 0

    async def counted_report() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        return await report_of_two_replicas()

    several = inspection_calls(counted_report)
    await asyncio.gather(*(several.inspect() for _ in range(10)))

    assert 1 == asked


async def test_inspection_path_returns_the_doctors_input() -> None:
    nothing: Any = None
    async with client_of(
        ServedModel(CONFIG, nothing, nothing, nothing, inspection_calls())
    ) as client:
        answer = await client.get("/v1/examination")

    assert 200 == answer.status_code
    found = Inspection.model_validate(json.loads(answer.content))
    assert {"r1", "r2"} == set((await report_of_two_replicas())["replicas"])
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
def test_certificates_in_serves_http_options_are_reported(
    http_options: dict[str, Any] | None, tls: bool | None
) -> None:
    """Options that cannot be read are reported as unknown, not as plaintext."""
    assert gathering._asks_for_tls(http_options) is tls


async def test_addresses_sent_through_a_proxy_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A proxy for external hosts cannot reach the cluster's own nodes."""
    monkeypatch.setenv("http_proxy", "http://user:secret@proxy:3128")
    monkeypatch.setenv("no_proxy", "localhost")

    proxied = (await inspection_calls().inspect()).ingress.proxied

    assert ProxyFacts(variable="http_proxy", addresses=("10.0.0.1",)) == proxied
