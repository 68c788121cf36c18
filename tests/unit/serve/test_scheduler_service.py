"""The scheduler in office, without Ray: epochs, long-polls, what is saved, who is forgotten."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, cast

import pytest

from justitia_ray.config import AppConfig, parse_app_config
from justitia_ray.core.actions import Abort, Grant
from justitia_ray.core.entities import Outcome, ReplicaCapacity
from justitia_ray.core.events import (
    ApplicationArrived,
    InferenceCancelled,
    InferenceSubmitted,
    LeaseFinished,
    LeaseProgress,
)
from justitia_ray.errors import ConfigError
from justitia_ray.protocol.messages import NOT_TAKEN, IngressMail, Pull, ReplicaMail
from justitia_ray.serve.scheduler_service import SchedulerService
from justitia_ray.store.scheduler_store import SchedulerStore
from tests.eventually import eventually

from .memory_store import MemoryStore

_FOREVER_S = 60.0


def config(**scheduler: float) -> AppConfig:
    """Return a configuration whose scheduler saves without delay."""
    return parse_app_config(
        {
            "model": {"name": "m", "path": "none"},
            "scheduler": {"recovery_s": 0.05, **scheduler},
            "store": {"save_interval_s": 0.01},
        }
    )


class Office:
    """Services over one store, one after the other, and why they stood down."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.reasons: list[str] = []
        self.revivals = 0
        self.services: list[SchedulerService] = []

    def service(self, **scheduler: float) -> SchedulerService:
        """Return another service, not started."""
        service = SchedulerService(
            config(**scheduler), cast(SchedulerStore, self.store), self.reasons.append, self._revive
        )
        self.services.append(service)
        return service

    async def start(self, **scheduler: float) -> SchedulerService:
        """Return another service, in office."""
        service = self.service(**scheduler)
        await service.start()
        return service

    def _revive(self) -> None:
        self.revivals += 1


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    """An empty store; the services on it are stopped at the end."""
    office = Office()
    yield office
    for service in office.services:
        await service.stop()


def pull(number: int, epoch: int = 1, wait_s: float = 0.0, **fields: Any) -> Pull:
    """Return a pull of replica `r` with room for 100 tokens."""
    defaults: dict[str, Any] = {
        "ack": 0,
        "capacity": ReplicaCapacity(100),
        "free_kv_tokens": 100,
        "progress": (),
        "finished": (),
        "preemptions": 0,
    }
    return Pull("r", epoch, number, wait_s=wait_s, **(defaults | fields))


def opened(name: str = "a", weight: float = 1.0) -> ApplicationArrived:
    """Return the opening of an application."""
    return ApplicationArrived(name, "c", "t", weight, 1_000.0, "i")


def inference(request_id: str, application_id: str = "a", **fields: Any) -> InferenceSubmitted:
    """Return an inference that needs 60 of the replica's 100 tokens."""
    return InferenceSubmitted(request_id, application_id, "0", "i", 50, 10, 10, **fields)


def granted(mail: IngressMail | ReplicaMail) -> list[Grant]:
    """Return the grants in an answer."""
    return [message for _, message in mail.messages if isinstance(message, Grant)]


async def cancelled(task: "asyncio.Task[Any]") -> None:
    """End a call that still waits."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


# --- status


async def test_status_counts_decisions_and_the_time_they_took(office: Office) -> None:
    """Its readers subtract two readings: what a load cost, and no more."""
    service = await office.start()
    before = (await service.status())["decisions"]
    await service.open_application(opened())
    await service.submit_many("i", 1, 0, (inference("q"),))

    after = (await service.status())["decisions"]
    # The opening, the inference, and that its ingress was heard of.
    assert before["count"] + 3 == after["count"]
    assert after["total_s"] > before["total_s"]
    assert after["count"] == sum(count for _, count in after["at_most_s"])


# --- epochs


async def test_call_of_another_epoch_returns_at_once_and_changes_nothing(office: Office) -> None:
    """A long-poll that waited would hold up the recovery from a restart by its 20 s."""
    service = await office.start()
    before = await service.status()
    answers = (
        await service.submit_many("i", 0, 0, (opened(), inference("q"))),
        await service.poll_grants("i", 0, 0),
        await service.pull(pull(1, epoch=0, wait_s=_FOREVER_S)),
    )

    assert (IngressMail(1), IngressMail(1), ReplicaMail(1)) == answers
    names = ("applications", "waiting", "ingresses", "replicas")
    after = await service.status()
    assert [before[name] for name in names] == [after[name] for name in names]


async def test_each_scheduler_takes_office_in_an_epoch_of_its_own(office: Office) -> None:
    """Lease ids carry the epoch: those of two schedulers must never be equal."""
    first = await office.start()
    await first.stop()
    second = await office.start()

    assert 1 == (await first.status())["epoch"]
    assert 2 == (await second.status())["epoch"]


# --- ingresses


async def test_grant_that_can_be_made_at_once_comes_with_the_answer(office: Office) -> None:
    """An idle system must not cost a second round trip."""
    service = await office.start()
    pulling = asyncio.create_task(service.pull(pull(1, wait_s=_FOREVER_S)))
    await eventually(lambda: "r" in service._driver.mail._replicas, "the replica pulls")
    mail = await service.submit_many("i", 1, 0, (opened(), inference("q")))

    (grant,) = granted(mail)
    assert ("q", "r") == (grant.request_id, grant.replica_id)
    assert [grant] == granted(await pulling)


async def test_abandoned_long_poll_does_not_eat_its_messages(office: Office) -> None:
    """Ray completes a call whose caller has gone, with the messages in its hand."""
    service = await office.start()
    await service.submit_many("i", 1, 0, (opened(), inference("q")))
    abandoned = asyncio.create_task(service.poll_grants("i", 1, 0))
    await asyncio.sleep(0)  # it polls
    await service.pull(pull(1))
    lost = await abandoned
    again = await service.poll_grants("i", 1, 0)

    assert 1 == len(granted(again))
    assert lost == again


async def test_newer_long_poll_releases_the_older_one_with_nothing(office: Office) -> None:
    """Two polls of one ingress would otherwise share the messages between them."""
    service = await office.start()
    older = asyncio.create_task(service.poll_grants("i", 1, 0))
    await eventually(lambda: "i" in service._driver.mail._ingresses, "it polls")
    newer = asyncio.create_task(service.poll_grants("i", 1, 0))

    assert IngressMail(1) == await older
    await cancelled(newer)


async def test_refused_lease_says_whether_its_inference_still_waits(office: Office) -> None:
    """An ingress whose inference has ended here must submit it anew, or wait for ever."""
    service = await office.start()
    await service.pull(pull(1))
    await service.submit_many("i", 1, 0, (opened(), inference("q")))
    (grant,) = granted(await service.pull(pull(2)))
    waits = await service.refuse_lease("q", grant.lease_id, "r", False)
    known = await service.refuse_lease("other", grant.lease_id, "r", False)

    assert (True, False) == (waits, known)


# --- replicas


async def test_newer_pull_releases_the_older_one(office: Office) -> None:
    """A replica reports news by a pull beside the one that waits."""
    service = await office.start()
    older = asyncio.create_task(service.pull(pull(1, wait_s=_FOREVER_S)))
    await eventually(lambda: "r" in service._driver.mail._replicas, "it pulls")
    newer = asyncio.create_task(service.pull(pull(2, wait_s=_FOREVER_S)))

    assert ReplicaMail(1) == await older
    await cancelled(newer)


async def test_pull_that_was_overtaken_is_not_taken(office: Office) -> None:
    """Its report is older than what is known, and would take leases for forgotten."""
    service = await office.start()
    await service.pull(pull(2))
    await service.submit_many("i", 1, 0, (opened(), inference("q")))
    (grant,) = granted(await service.pull(pull(3)))
    running = (LeaseProgress(grant.lease_id, 50, 1, True),)
    await service.pull(pull(5, progress=running))
    late = await service.pull(pull(4))

    assert ReplicaMail(NOT_TAKEN) == late
    assert 1 == (await service.status())["in_flight"]


async def test_end_that_is_reported_again_is_no_late_report(office: Office) -> None:
    """Replicas repeat an end until it is confirmed; the count is of leases given up too soon."""
    service = await office.start()
    await service.pull(pull(1))
    await service.submit_many("i", 1, 0, (opened(), inference("q")))
    (grant,) = granted(await service.pull(pull(2)))
    end = LeaseFinished(grant.lease_id, 50, 10, Outcome.FINISHED)
    await service.pull(pull(4, finished=(end,)))  # the third was overtaken
    await service.pull(pull(5, finished=(end,)))

    status = await service.status()
    assert (0, 0, 1) == (status["in_flight"], status["late_reports"], status["grants"])


async def test_replica_that_comes_back_is_sent_its_leases(office: Office) -> None:
    """Its line was dropped while it was silent; new numbers must not look read to it."""
    service = await office.start(replica_timeout_s=0.05)
    await service.pull(pull(1))
    await service.submit_many("i", 1, 0, (opened(), inference("q")))
    mail = await service.pull(pull(2))
    ((read, grant),) = mail.messages
    assert isinstance(grant, Grant)
    await eventually(lambda: "r" not in service._driver.mail._replicas, "it is given up")
    held = (LeaseProgress(grant.lease_id, 50, 1, True),)
    back = await service.pull(pull(3, ack=read, progress=held))

    assert [Abort("r", grant.lease_id)] == [m for _, m in back.messages if isinstance(m, Abort)]
    (anew,) = granted(back)
    assert ("q", True) == (anew.request_id, anew.lease_id != grant.lease_id)


async def test_mail_of_a_lost_ingress_is_forgotten_and_its_poll_let_go(office: Office) -> None:
    """Ingresses come and go; mail that nobody reads must not pile up."""
    service = await office.start(ingress_timeout_s=0.05)
    poll = asyncio.create_task(service.poll_grants("i", 1, 0))
    await eventually(lambda: "i" in service._driver.mail._ingresses, "it polls")

    assert IngressMail(1, forgotten=True) == await asyncio.wait_for(poll, 5.0)
    assert not service._driver.mail._ingresses


async def test_lost_ingress_that_calls_again_is_told_that_it_was_forgotten(office: Office) -> None:
    """What it had waiting was ended: under its old name its callers would wait for ever."""
    service = await office.start(ingress_timeout_s=0.05)
    await service.submit_many("i", 1, 0, (opened(), inference("q")))
    await eventually(lambda: not service._driver.mail._ingresses, "it is given up")
    told = IngressMail(1, forgotten=True)

    assert told == await service.submit_many("i", 1, 0, (inference("q2"),))
    assert told == await service.poll_grants("i", 1, 0)
    assert 0 == (await service.status())["waiting"]
    other = InferenceSubmitted("q", "a", "0", "i2", 50, 10, 10, again=True)
    assert IngressMail(1) == await service.submit_many("i2", 1, 0, (other,))
    assert 1 == (await service.status())["waiting"]


async def test_replica_that_leaves_has_its_work_leased_elsewhere(office: Office) -> None:
    """A replica that shuts down says so: nobody has to wait for its silence."""
    service = await office.start()
    await service.pull(pull(1))
    await service.submit_many("i", 1, 0, (opened(), inference("q")))
    await service.leave("r")

    status = await service.status()
    assert ({}, 1, 0) == (status["replicas"], status["waiting"], status["in_flight"])


# --- settings


async def test_settings_change_while_inferences_wait(office: Office) -> None:
    """Changing the policy must not cost the queue."""
    service = await office.start()
    await service.submit_many("i", 1, 0, (opened(), inference("q")))
    assert 1 == await service.configure({"policy": "fcfs", "admission": "prompt"})

    status = await service.status()
    assert ("fcfs", 1) == (status["policy"], status["waiting"])


async def test_setting_that_is_not_allowed_changes_nothing(office: Office) -> None:
    """Half a change would be worse than none."""
    service = await office.start()
    before = (await service.status())["settings"]
    with pytest.raises(ConfigError, match="admission: 'guess' is not one of peak, prompt"):
        await service.configure({"policy": "fcfs", "admission": "guess"})

    assert before == (await service.status())["settings"]


# --- what outlives a scheduler


async def test_next_scheduler_has_tags_settings_and_order_of_the_last(office: Office) -> None:
    """A restart must not turn the order round."""
    first = await office.start()
    await first.configure({"policy": "justitia", "admission": "prompt"})
    tags = {}
    for name, weight in (("slow", 1.0), ("fast", 10.0)):
        tags[name] = (await first.open_application(opened(name, weight))).virtual_finish_time
    await first.pull(pull(1))
    await first.stop()
    second = await office.start()
    again = tuple(inference(f"q-{name}", name, again=True, age_s=1.0) for name in ("slow", "fast"))
    await second.submit_many("i", 2, 0, again)
    mail = await second.pull(pull(2, epoch=2))

    # The replica that the first one knew has reported, so nothing holds the grants any more.
    assert ["q-fast"] == [grant.request_id for grant in granted(mail)]
    assert 10 * tags["fast"] == tags["slow"]
    known = {name: await second.application(name) for name in tags}
    assert tags == {name: k["virtual_finish_time"] for name, k in known.items() if k is not None}
    assert "prompt" == (await second.status())["settings"]["admission"]


async def test_nothing_is_granted_before_the_known_replicas_have_reported(office: Office) -> None:
    """What they run is not known yet: a lease might be the second for one inference."""
    first = await office.start()
    await first.pull(pull(1))
    await first.stop()
    second = await office.start(recovery_s=_FOREVER_S)
    await second.submit_many("i", 2, 0, (opened(), inference("q")))
    other = Pull("other", 2, 1, 0, ReplicaCapacity(100), 100, (), (), 0, 0.0)
    early = await second.pull(other)
    await second.pull(pull(1, epoch=2))

    assert [] == granted(early)
    assert 1 == (await second.status())["grants"]


async def test_lease_that_finished_during_the_restart_is_not_run_again(office: Office) -> None:
    """Its replica reports the end to the new scheduler; the ingress may not have it yet."""
    first = await office.start()
    await first.pull(pull(1))
    await first.submit_many("i", 1, 0, (opened(), inference("q")))
    (grant,) = granted(await first.pull(pull(2)))
    await first.stop()
    second = await office.start(recovery_s=_FOREVER_S)
    claim = inference("q", again=True, age_s=1.0, lease_id=grant.lease_id)
    await second.submit_many("i", 2, 0, (opened(), claim))
    finished = LeaseFinished(grant.lease_id, 50, 10, Outcome.FINISHED)
    await second.pull(pull(1, epoch=2, finished=(finished,)))

    status = await second.status()
    # Grants go on counting where the first scheduler was: it made this one.
    assert (0, 0, 1) == (status["waiting"], status["in_flight"], status["grants"])


async def test_end_that_was_repeated_is_counted_once_also_by_the_next_scheduler(
    office: Office,
) -> None:
    """The answers to its pulls were lost: a replica tells the new one what it told the old one."""
    first = await office.start()
    await first.pull(pull(1))
    await first.submit_many("i", 1, 0, (opened(), inference("q")))
    (grant,) = granted(await first.pull(pull(2)))
    end = (LeaseFinished(grant.lease_id, 50, 10, Outcome.FINISHED),)
    await first.pull(pull(3, finished=end))
    await first.pull(pull(4, finished=end))
    before = await first.application("a")
    await first.stop()
    second = await office.start()
    claim = inference("q", again=True, age_s=1.0, lease_id=grant.lease_id)
    await second.submit_many("i", 2, 0, (opened(), claim))
    await second.pull(pull(5, epoch=2, finished=end))

    after = await second.application("a")
    assert before is not None
    assert after is not None
    told = ("kv_token_time", "ended", "running", "waiting")
    assert [before[name] for name in told] == [after[name] for name in told]


async def test_lost_store_degrades_the_scheduler_and_it_catches_up(office: Office) -> None:
    """Scheduling goes on in memory; what happened meanwhile is saved once there is a store."""
    service = await office.start()
    office.store.away = True
    await eventually(lambda: office.revivals, "the store is revived")
    await service.open_application(opened())
    degraded = (await service.status())["degraded"]
    office.store.away = False
    await eventually(lambda: "a" in office.store.applications, "what happened is saved")

    assert "Redis at memory: away" == degraded
    assert (await service.status())["degraded"] is None


async def test_scheduler_without_a_store_waits_for_its_epoch(office: Office) -> None:
    """Without one it cannot know what was promised; it says that it is not ready."""
    office.store.away = True
    service = office.service()
    starting = asyncio.create_task(service.start())
    call = asyncio.create_task(service.open_application(opened()))
    await eventually(lambda: office.revivals, "it has asked the store")
    waiting = await service.status()
    office.store.away = False
    await starting

    assert (False, "Redis at memory: away") == (waiting["ready"], waiting["degraded"])
    assert 1 == (await call).epoch


async def test_scheduler_that_finds_a_later_epoch_says_so_with_its_next_save(
    office: Office,
) -> None:
    """Two in office would lease everything twice; who asks this one is told who won."""
    service = await office.start()
    office.store.epoch = 2

    async def degraded() -> str | None:
        told: str | None = (await service.status())["degraded"]
        return told

    assert "epoch 2 is in office" in await eventually(degraded, "it finds out")
    assert [] == office.reasons


async def test_abandoned_scheduler_stands_down(office: Office) -> None:
    """A detached actor that nobody needs any more must not hold memory for ever."""
    await office.start(abandoned_s=0.05)
    await eventually(lambda: office.reasons, "it stands down")

    assert "nobody has called for 0.05 s" == office.reasons[0]


async def test_grant_that_goes_with_the_answer_to_a_batch_is_no_sign_of_silence(
    office: Office,
) -> None:
    """A cancellation in it made the room: that grant is told, and asks for no other message."""
    service = await office.start()
    await service.pull(pull(1))
    batch = (opened(), inference("q1"), inference("q2"))
    running = asyncio.create_task(service.pull(pull(2, wait_s=_FOREVER_S)))
    await asyncio.sleep(0)
    given = granted(await service.submit_many("i", 1, 0, batch))
    await running
    progress = (LeaseProgress(given[0].lease_id, 50, 1, True),)
    holds = asyncio.create_task(service.pull(pull(3, ack=1, wait_s=_FOREVER_S, progress=progress)))
    await asyncio.sleep(0)
    mail = await service.submit_many("i", 1, 1, (InferenceCancelled("q1"),))
    state = service._core.state
    (lease,) = state.leases.values()

    assert "q2" == lease.request_id == granted(mail)[-1].request_id
    assert lease.granted_at <= state.ingresses["i"]
    await cancelled(holds)
