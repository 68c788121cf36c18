"""The scheduler service without Ray: epochs, long-polls, saves, and lost replicas and ingresses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from justitia_ray.core.actions import Abort, EndsStored, Grant
from justitia_ray.core.entities import FailureCause, Outcome, ReplicaCapacity
from justitia_ray.core.events import (
    EngineFailed,
    InferenceCancelled,
    InferenceSubmitted,
    LeaseFinished,
    LeaseProgress,
    LeaseRun,
    NackReason,
)
from justitia_ray.core.limits import LimitStanding
from justitia_ray.errors import ConfigError
from justitia_ray.protocol.messages import NOT_TAKEN, IngressMail, Pull, ReplicaMail
from justitia_ray.serve.scheduler.clock import SteadyClock
from justitia_ray.serve.scheduler.service import SchedulerService
from tests.eventually import eventually
from tests.fake_redis import AWAY
from tests.unit.serve.scheduler import services as services_module
from tests.unit.serve.scheduler.services import Services, arrival_of, grants_in, pull_of

_FOREVER_S = 60.0


@pytest.fixture
async def services() -> AsyncIterator[Services]:
    """Scheduler services on an empty store that is saved without delay."""
    services = Services(clock=SteadyClock, save_interval_s=0.01)
    yield services
    await services.close()


@pytest.fixture
async def service(services: Services) -> SchedulerService:
    return await services.start_leader()


inference = partial(services_module.submission_of, prompt_tokens=50)
"""Inference that needs 60 of the replica's 100 tokens."""


async def cancel_and_wait(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def lease_q(service: SchedulerService) -> Grant:
    """Let replica `r` pull, submit inference `q`, and return the lease that it gets."""
    await service.pull(pull_of(1))
    await service.submit_many("i", 1, 0, (arrival_of(), inference("q")))
    (grant,) = grants_in(await service.pull(pull_of(2)))
    return grant


# --- limits of tenants


async def test_grant_message_contains_the_tenants_limits(
    service: SchedulerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the caller says how much of the limit is left."""
    mail = await service.submit_many("i", 1, 0, (arrival_of(), inference("q0")))
    assert {} == mail.standings
    left = LimitStanding("t", "inferences", 60.0, 59.0, 1.0, 60.0)
    monkeypatch.setattr(service.term.gate, "has_quotas", True)
    monkeypatch.setattr(service.term.gate, "standings", {"t": (left,)}.__getitem__)
    no_grant = await service.submit_many("i", 1, 0, ())
    await service.pull(pull_of(1))
    with_grant = await service.submit_many("i", 1, 0, ())

    assert {} == no_grant.standings
    assert ["q0"] == [grant.request_id for grant in grants_in(with_grant)]
    assert {"t": (left,)} == with_grant.standings


async def test_answer_to_a_submission_has_the_queue_positions(service: SchedulerService) -> None:
    """Repeated inferences got their queue positions from the previous scheduler."""
    items = (
        *(arrival_of("a"), inference("a1", "a"), arrival_of("b", 50.0), inference("b1", "b")),
        *(arrival_of("c"), inference("c1", "c", resubmitted=True), inference("lost", "of nobody")),
    )
    mail = await service.submit_many("i", 1, 0, items)

    assert {"a1": 1, "b1": 0} == mail.positions
    assert {} == (await service.submit_many("i", 1, 0, ())).positions


async def test_opening_call_reports_whether_the_application_was_open(
    service: SchedulerService,
) -> None:
    """An ingress keeps the class and input with which the application was first opened."""
    opened = [await service.open_application(arrival_of()) for _ in range(2)]
    await service.cancel_application("a")

    assert [False, True] == [one.is_known for one in opened]
    assert not (await service.open_application(arrival_of())).is_known


# --- status


async def test_status_counts_scheduling_decisions_and_their_duration(
    service: SchedulerService,
) -> None:
    """The difference of two readings gives the decisions and time of a period."""
    before = service.inspector.status().decisions
    await service.open_application(arrival_of())
    await service.submit_many("i", 1, 0, (inference("q"),))

    after = service.inspector.status().decisions
    # The opening, the inference, and the sign of life of its ingress.
    assert before["count"] + 3 == after["count"]
    assert after["total_s"] > before["total_s"]
    assert after["count"] == sum(count for _, count in after["at_most_s"])


# --- epochs


async def test_call_with_another_scheduler_epoch_has_no_effect(
    service: SchedulerService,
) -> None:
    """A waiting long-poll would delay the recovery after a restart by 20 s."""
    before = service.inspector.status()
    answers = (
        await service.submit_many("i", 0, 0, (arrival_of(), inference("q"))),
        await service.poll_grants("i", 0, 0),
        await service.pull(pull_of(1, epoch=0, wait_s=_FOREVER_S)),
    )

    told = IngressMail(1)
    assert (told, told, ReplicaMail(1)) == answers
    names = ("applications", "waiting", "ingresses", "replicas")
    after = service.inspector.status()
    assert [getattr(before, name) for name in names] == [getattr(after, name) for name in names]


# --- ingresses


async def test_immediate_grant_is_in_the_answer_to_its_submission(
    service: SchedulerService,
) -> None:
    pulling = asyncio.create_task(service.pull(pull_of(1, wait_s=_FOREVER_S)))
    await eventually(lambda: "r" in service.term.driver.outboxes.replicas, "the replica pulls")
    mail = await service.submit_many("i", 1, 0, (arrival_of(), inference("q")))

    (grant,) = grants_in(mail)
    assert ("q", "r") == (grant.request_id, grant.replica_id)
    assert [grant] == grants_in(await pulling)


async def test_abandoned_long_poll_loses_no_message(service: SchedulerService) -> None:
    """Ray completes the poll of a process that has died; its messages go to the next poll."""
    await service.submit_many("i", 1, 0, (arrival_of(), inference("q")))
    abandoned = asyncio.create_task(service.poll_grants("i", 1, 0))
    await asyncio.sleep(0)  # the ingress polls
    await service.pull(pull_of(1))
    lost = await abandoned
    again = await service.poll_grants("i", 1, 0)

    assert 1 == len(grants_in(again))
    assert lost == again


async def test_newer_long_poll_ends_the_older_poll_without_messages(
    service: SchedulerService,
) -> None:
    """Two polls would share an ingress's messages; a replica sends news by a second pull."""
    polls = [asyncio.create_task(service.poll_grants("i", 1, 0)) for _ in range(2)]
    pulls = [asyncio.create_task(service.pull(pull_of(n, wait_s=_FOREVER_S))) for n in (1, 2)]

    told = IngressMail(1)
    assert (told, ReplicaMail(1)) == (await polls[0], await pulls[0])
    await cancel_and_wait(polls[1])
    await cancel_and_wait(pulls[1])


async def test_answer_to_a_refused_lease_says_whether_the_inference_still_waits(
    service: SchedulerService,
) -> None:
    """An ingress whose inference has ended at the scheduler must resubmit it."""
    grant = await lease_q(service)
    waits = await service.refuse_lease("q", grant.lease_id, NackReason.LEASE)
    known = await service.refuse_lease("other", grant.lease_id, NackReason.LEASE)

    assert (True, False) == (waits, known)


# --- replicas


async def test_silent_replica_with_an_open_connection_is_kept(
    service: SchedulerService,
) -> None:
    """An open connection shows that the replica's process lives."""
    connected = {"r"}
    service.connected = connected
    await service.pull(pull_of(1))
    replica = service.term.driver.core.state.replicas["r"]
    assert replica.connected

    service.replica_disconnected("r")
    assert replica.connected  # The replica has another connection.

    connected.clear()
    service.replica_disconnected("r")
    assert not replica.connected


async def test_outdated_pull_of_a_replica_is_ignored(service: SchedulerService) -> None:
    """The overtaken report is older than the state and would mark leases as forgotten."""
    await service.pull(pull_of(2))
    await service.submit_many("i", 1, 0, (arrival_of(), inference("q")))
    (grant,) = grants_in(await service.pull(pull_of(3)))
    running = (LeaseProgress(grant.lease_id, 50, 1, True),)
    await service.pull(pull_of(5, progress=running))
    late = await service.pull(pull_of(4))

    assert ReplicaMail(NOT_TAKEN) == late
    assert 1 == service.inspector.status().in_flight


async def test_first_pull_of_an_unknown_replica_must_list_its_leases(
    service: SchedulerService,
) -> None:
    """The scheduler must learn the old leases of a replica to have them stopped."""
    answers = [await service.pull(pull_of(1, progress=None))]
    await service.pull(pull_of(2))
    answers.append(await service.pull(pull_of(3, progress=None)))
    await service.leave("r")
    answers.append(await service.pull(pull_of(4, progress=None)))
    running = (LeaseProgress("1-1", 50, 1, True),)
    back = await service.pull(pull_of(5, progress=running))

    assert [NOT_TAKEN, 1, NOT_TAKEN] == [answer.epoch for answer in answers]
    assert ["1-1"] == [m.lease_id for _, m in back.messages if isinstance(m, Abort)]


async def test_repeated_lease_end_does_not_count_as_a_late_report(
    service: SchedulerService,
) -> None:
    """Replicas repeat the end of a lease until it is confirmed.

    Only leases that were revoked too early count.
    """
    grant = await lease_q(service)
    end = LeaseFinished(grant.lease_id, 50, 10, Outcome.FINISHED)
    await service.pull(pull_of(4, finished=(end,)))  # the third pull was overtaken
    await service.pull(pull_of(5, finished=(end,)))

    status = service.inspector.status()
    assert (0, 0, 1) == (status.in_flight, status.late_reports, status.grants)


async def test_returning_replica_gets_an_abort_and_a_new_lease(services: Services) -> None:
    """The replica was taken for dead, so its old lease is aborted and a new one granted."""
    service = await services.start_leader(replica_timeout_s=0.05)
    await service.pull(pull_of(1))
    await service.submit_many("i", 1, 0, (arrival_of(), inference("q")))
    mail = await service.pull(pull_of(2))
    ((read, grant),) = mail.messages
    assert isinstance(grant, Grant)
    await eventually(lambda: "r" not in service.term.driver.outboxes.replicas, "it is given up")
    held = (LeaseProgress(grant.lease_id, 50, 1, True),)
    back = await service.pull(pull_of(3, ack=read, progress=held))

    assert [Abort("r", grant.lease_id)] == [m for _, m in back.messages if isinstance(m, Abort)]
    (anew,) = grants_in(back)
    assert ("q", True) == (anew.request_id, anew.lease_id != grant.lease_id)


async def test_loss_of_an_ingress_drops_its_messages_and_ends_its_poll(services: Services) -> None:
    """Ingresses come and go, and unread messages must not accumulate."""
    service = await services.start_leader(ingress_timeout_s=0.05)
    poll = asyncio.create_task(service.poll_grants("i", 1, 0))
    await eventually(lambda: "i" in service.term.driver.outboxes.ingresses, "it polls")

    assert IngressMail(1, forgotten=True) == await asyncio.wait_for(poll, 5.0)
    assert not service.term.driver.outboxes.ingresses


async def test_returning_ingress_learns_that_the_scheduler_forgot_it(
    services: Services,
) -> None:
    service = await services.start_leader(ingress_timeout_s=0.05)
    await service.submit_many("i", 1, 0, (arrival_of(), inference("q")))
    await eventually(lambda: not service.term.driver.outboxes.ingresses, "it is given up")
    told = IngressMail(1, forgotten=True)

    assert told == await service.submit_many("i", 1, 0, (inference("q2"),))
    assert told == await service.poll_grants("i", 1, 0)
    assert 0 == service.inspector.status().waiting
    other = InferenceSubmitted("q", "a", "0", "i2", 50, 10, 10, resubmitted=True)
    mail = await service.submit_many("i2", 1, 0, (other,))
    assert IngressMail(1) == mail
    assert 1 == service.inspector.status().waiting


async def test_ended_inference_is_confirmed_to_its_ingress_after_the_save(
    services: Services,
) -> None:
    """A scheduler that restores the end has already counted it."""
    service = await services.start_leader()
    arrival, item = replace(arrival_of(), keeps_ends=True), inference("q", is_counted=False)
    await service.submit_many("i", 1, 0, (arrival, item))
    await service.pull(pull_of(1, wait_s=0.0))
    end = LeaseFinished("1-1", 20, 10, Outcome.FINISHED)
    await service.pull(pull_of(2, finished=(end,), wait_s=0.0))
    before = await service.submit_many("i", 1, 0, ())
    await service.term.checkpointer.next_save()
    mail = await service.submit_many("i", 1, before.messages[-1][0], ())
    ends = service.term.driver.core.state.ends
    kept = ends.is_counted("a", "q")
    await service.submit_many("i", 1, mail.messages[-1][0], ())

    assert EndsStored("i", ("q",)) not in [message for _, message in before.messages]
    assert [EndsStored("i", ("q",))] == [message for _, message in mail.messages]
    assert [True, False] == [kept, ends.is_counted("a", "q")]


async def test_inferences_of_a_stopping_replica_are_leased_elsewhere(
    service: SchedulerService,
) -> None:
    """A replica reports its shutdown, so its leases need not wait for a timeout."""
    await service.pull(pull_of(1))
    await service.submit_many("i", 1, 0, (arrival_of(), inference("q")))
    await service.leave("r")

    status = service.inspector.status()
    assert ({}, 1, 0) == (status.replicas, status.waiting, status.in_flight)


async def test_death_of_an_engine_marks_its_inferences_before_requeuing(
    service: SchedulerService,
) -> None:
    """Otherwise the inference that killed the engine would run beside others again."""
    grant = await lease_q(service)
    failed = EngineFailed("r", "r", FailureCause.CRASH, (LeaseRun(grant.lease_id, 0.3),))
    ends = (LeaseFinished(grant.lease_id, 50, 1, None),)
    await service.pull(replace(pull_of(3, draining=True, finished=ends), failure=failed))
    await service.pull(replace(pull_of(4, draining=True, finished=ends), failure=failed))
    other = await service.pull(replace(pull_of(1), replica_id="s", wait_s=0.0))

    status = service.inspector.status()
    assert [] == grants_in(other)
    assert {"crash": 1, "kill": 0} == status.engine_failures
    assert (1, 1) == (status.suspects, status.waiting)


async def test_repeated_crash_notice_counts_once_for_each_inference(
    service: SchedulerService,
) -> None:
    """The crash notice is repeated if its answer is lost."""
    await lease_q(service)
    for _ in range(2):
        await service.replica_crashed("r")
    await service.replica_crashed("unknown")

    status = service.inspector.status()
    assert {"crash": 1, "kill": 0} == status.engine_failures
    assert (1, 1) == (status.suspects, status.waiting)


# --- settings


async def test_settings_can_change_while_inferences_wait(service: SchedulerService) -> None:
    await service.submit_many("i", 1, 0, (arrival_of(), inference("q")))
    assert 1 == await service.configure({"policy": "fcfs", "admission": "prompt"})

    status = service.inspector.status()
    assert ("fcfs", 1) == (status.policy, status.waiting)


async def test_invalid_scheduler_setting_has_no_effect(service: SchedulerService) -> None:
    before = service.inspector.status().settings
    with pytest.raises(ConfigError, match="admission: 'guess' is not one of peak, prompt"):
        await service.configure({"policy": "fcfs", "admission": "guess"})

    assert before == service.inspector.status().settings


# --- state that survives a scheduler


async def test_next_scheduler_keeps_finish_tags_settings_and_queue_order(
    services: Services,
) -> None:
    first = await services.start_leader()
    await first.configure({"policy": "justitia", "admission": "prompt"})
    tags = {}
    for name, weight in (("slow", 1.0), ("fast", 10.0)):
        tags[name] = (
            await first.open_application(arrival_of(name, weight=weight))
        ).virtual_finish_time
    await first.pull(pull_of(1))
    await first.term.end()
    second = await services.start_leader()
    again = tuple(
        inference(f"q-{name}", name, resubmitted=True, age_s=1.0) for name in ("slow", "fast")
    )
    await second.submit_many("i", 2, 0, again)
    mail = await second.pull(pull_of(2, epoch=2))

    # The replica of the first scheduler has reported, so grants are not delayed any more.
    assert ["q-fast"] == [grant.request_id for grant in grants_in(mail)]
    assert 10 * tags["fast"] == tags["slow"]
    known = {name: await second.application(name) for name in tags}
    assert tags == {name: k["virtual_finish_time"] for name, k in known.items() if k is not None}
    assert "prompt" == second.inspector.status().settings["admission"]


async def test_restarted_scheduler_grants_nothing_before_known_replicas_have_reported(
    services: Services,
) -> None:
    """An inference that still runs under an earlier lease must not get a second one."""
    first = await services.start_leader()
    await first.pull(pull_of(1))
    await first.term.end()
    second = await services.start_leader(recovery_s=_FOREVER_S)
    await second.submit_many("i", 2, 0, (arrival_of(), inference("q")))
    other = Pull("other", 2, 1, 0, ReplicaCapacity(100), 100, (), (), 0, 0.0)
    early = await second.pull(other)
    await second.pull(pull_of(1, epoch=2))

    assert [] == grants_in(early)
    assert 1 == second.inspector.status().grants


async def test_lease_that_finished_during_the_restart_is_not_run_again(services: Services) -> None:
    """The replica reports the end to the new scheduler before the ingress knows of it."""
    first = await services.start_leader()
    grant = await lease_q(first)
    await first.term.end()
    second = await services.start_leader(recovery_s=_FOREVER_S)
    claim = inference("q", resubmitted=True, age_s=1.0, lease_id=grant.lease_id)
    await second.submit_many("i", 2, 0, (arrival_of(), claim))
    finished = LeaseFinished(grant.lease_id, 50, 10, Outcome.FINISHED)
    await second.pull(pull_of(1, epoch=2, finished=(finished,)))

    status = second.inspector.status()
    # The grant was made by the first scheduler.
    assert (0, 0, 1) == (status.waiting, status.in_flight, status.grants)


async def test_next_scheduler_counts_a_repeated_lease_end_once(
    services: Services,
) -> None:
    """The replica got no answers to its pulls, so it repeats the end to the new scheduler."""
    first = await services.start_leader()
    grant = await lease_q(first)
    end = (LeaseFinished(grant.lease_id, 50, 10, Outcome.FINISHED),)
    await first.pull(pull_of(3, finished=end))
    await first.pull(pull_of(4, finished=end))
    before = await first.application("a")
    await first.term.end()
    second = await services.start_leader(recovery_s=_FOREVER_S)
    claim = inference("q", resubmitted=True, age_s=1.0, lease_id=grant.lease_id)
    await second.submit_many("i", 2, 0, (arrival_of(), claim))
    await second.pull(pull_of(5, epoch=2, finished=end))

    after = await second.application("a")
    assert before is not None
    assert after is not None
    told = ("kv_token_time", "ended", "running", "waiting")
    assert [before[name] for name in told] == [after[name] for name in told]


async def test_scheduler_saves_its_state_after_a_store_outage(
    services: Services,
) -> None:
    """Scheduling continues in memory and is saved once the store is back."""
    service = await services.start_leader()
    services.store.away = True
    await eventually(lambda: services.revivals, "the store is revived")
    await service.open_application(arrival_of())
    degraded = service.inspector.status().degraded
    services.store.away = False
    await eventually(lambda: "a" in services.store.stored_applications(), "what happened is saved")

    assert AWAY == degraded
    await eventually(
        lambda: service.inspector.status().degraded is None,
        "the scheduler knows that all is saved",
    )


@pytest.mark.slow
async def test_scheduler_with_an_unreachable_store_waits_for_its_epoch(services: Services) -> None:
    """Without the store, a scheduler cannot read the earlier grants and is not ready."""
    services.store.away = True
    service = services.new_service()
    starting = asyncio.create_task(service.term.begin())
    call = asyncio.create_task(service.open_application(arrival_of()))
    await eventually(lambda: services.revivals, "it has asked the store")
    waiting, seen = service.inspector.status(), service.inspector.report()
    services.store.away = False
    await starting
    await service.configure({})

    assert (False, AWAY) == (waiting.ready, waiting.degraded) == (seen["ready"], seen["degraded"])
    assert 1 == (await call).epoch


async def test_scheduler_without_callers_stops_after_a_time(services: Services) -> None:
    """A detached actor without callers must not hold memory forever."""
    await services.start_leader(abandoned_s=0.05)
    await eventually(lambda: services.reasons, "it stands down")

    assert "no call for 0.05 s" == services.reasons[0]


async def test_grant_after_a_batch_cancellation_does_not_mark_the_ingress_silent(
    service: SchedulerService,
) -> None:
    """The grant was possible because of a cancellation in the same batch."""
    await service.pull(pull_of(1))
    batch = (arrival_of(), inference("q1"), inference("q2"))
    running = asyncio.create_task(service.pull(pull_of(2, wait_s=_FOREVER_S)))
    await asyncio.sleep(0)
    given = grants_in(await service.submit_many("i", 1, 0, batch))
    await running
    progress = (LeaseProgress(given[0].lease_id, 50, 1, True),)
    holds = asyncio.create_task(
        service.pull(pull_of(3, ack=1, wait_s=_FOREVER_S, progress=progress))
    )
    await asyncio.sleep(0)
    mail = await service.submit_many("i", 1, 1, (InferenceCancelled("q1"),))
    state = service.term.driver.core.state
    (lease,) = state.leases.values()

    assert "q2" == lease.request_id == grants_in(mail)[-1].request_id
    assert lease.granted_at <= state.ingresses["i"]
    await cancel_and_wait(holds)
