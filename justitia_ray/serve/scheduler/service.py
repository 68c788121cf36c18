"""The scheduler's calls, for ingresses and replicas of one model.

Events are handled without awaiting, so no locks are needed.
"""

import asyncio
import math
from collections.abc import Container
from dataclasses import replace
from typing import Any

from justitia_ray.config import LONG_POLL_S
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Grant, Refusal, Refuse, RefuseApplication
from justitia_ray.core.ended_by_owner import EndedByOwner
from justitia_ray.core.limits import LimitStanding
from justitia_ray.core.outlook import WALK_KEPT_S
from justitia_ray.core.usage import DAY_S, Day
from justitia_ray.protocol.messages import (
    NOT_TAKEN,
    IngressMail,
    IngressMessage,
    Opened,
    Pull,
    ReplicaMail,
    Submission,
)
from justitia_ray.recognition.conversations import Name
from justitia_ray.recognition.directory import Directory
from justitia_ray.serve.scheduler.claims import limit_of
from justitia_ray.serve.scheduler.console import SchedulerConsole, Told
from justitia_ray.serve.scheduler.inspection import SchedulerInspector
from justitia_ray.serve.scheduler.leadership import Term
from justitia_ray.serve.scheduler.listing import (
    application_with_outlook,
    json_outlooks,
    listing,
    unopened_view,
)
from justitia_ray.serve.scheduler.outboxes import Outbox
from justitia_ray.units import (
    ApplicationId,
    ClientId,
    Epoch,
    IngressId,
    LeaseId,
    ReplicaId,
    RequestId,
    Seconds,
)


class SchedulerService:
    """Serves calls of ingresses and replicas for one model during one term; independent of Ray.

    Args:
        term: Term of the scheduler, which the service's owner begins and ends.
    """

    def __init__(self, term: Term) -> None:
        self.term = term
        self.inspector = SchedulerInspector(term)
        self.console = SchedulerConsole(term, self.inspector)
        self._directory = Directory()
        kept_s = term.config.scheduler.application_idle_s
        self._ended = EndedByOwner(kept_s)
        self._ended_before = EndedByOwner(kept_s)
        """Applications that callers ended under an earlier scheduler; their ids may have been
        reused since.
        """
        self._reopening: set[ApplicationId] = set()
        """Cancelled or closed applications that still run, and whose ids callers want to reuse."""
        self.connected: Container[ReplicaId] = ()
        """Ids of the replicas that are connected; set by the service's owner."""
        self._sampled_at: Seconds = -math.inf
        """Time of the last predicted start that was computed only to measure the accuracy of
        predictions.
        """

    # --- calls of ingresses

    async def open_application(self, arrival: ev.ApplicationArrived) -> Opened:
        """Open an application if it is not open; return its virtual finish time.

        Raises:
            AdmissionError: If the scheduler receives no settings in time.
        """
        term = await self.term.admit_caller()
        await term.await_settings()
        if not self._reopen_application(arrival.application_id):
            return Opened(term.epoch, 0.0, Refusal.APPLICATION_ENDING)
        arrival = replace(arrival, reopens=True)
        name, core = arrival.application_id, term.driver.core
        is_known = name in core.state.applications
        term.admit(arrival)
        refused = await term.gate.decided(name)
        if isinstance(refused, Refusal):
            return Opened(term.epoch, 0.0, refused)
        if refused is not None:
            limit, wait_s = limit_of(refused), refused.retry_after_s
            return Opened(term.epoch, 0.0, Refusal.QUOTA_EXHAUSTED, limit, wait_s)
        if name not in core.state.applications:
            rejection = core.applications.rejections.get(name)
            if rejection is None:
                return Opened(term.epoch, 0.0, Refusal.TOO_MANY_APPLICATIONS)
            return Opened(
                term.epoch, 0.0, rejection.reason, rejection.limit, rejection.retry_after_s
            )
        term.driver.outboxes.withdraw_end(arrival.ingress_id, name)
        tag = core.tag(name)
        is_stored = await term.admission.is_stored(name)
        await term.checkpointer.confirm()
        term.check_lead()
        standings = term.gate.standings(arrival.tenant) if term.gate.has_quotas else ()
        refusal = None if is_stored else Refusal.NOT_STORED
        return Opened(term.epoch, tag, refusal, standings=standings, is_known=is_known)

    async def close_application(self, application_id: ApplicationId) -> bool:
        """Close an application to new inferences; return whether it was open."""
        term = await self.term.admit_caller()
        known = self._note_ended(application_id, Refusal.APPLICATION_CLOSED)
        term.admit(ev.ApplicationClosed(application_id))
        return known

    async def cancel_application(self, application_id: ApplicationId) -> bool:
        """End an application with all its inferences; return whether it was open."""
        term = await self.term.admit_caller()
        known = self._note_ended(application_id, Refusal.APPLICATION_CANCELLED)
        term.driver.apply(ev.ApplicationCancelled(application_id))
        term.gate.cancel_application(application_id)
        term.admission.cancel_application(application_id)
        return known

    async def restore_ended(self, ended: list[tuple[ApplicationId, str, Seconds]]) -> None:
        """Restore recently ended applications from an ingress, for a scheduler without record.

        Args:
            ended: Id, reason, and seconds since the end.
        """
        term = await self.term.admit_caller()
        now = term.driver.now()
        for application_id, reason, ago_s in ended:
            if self._ended_before.refusal(application_id, now) is None:
                self._ended_before.note(application_id, Refusal(reason), now - ago_s)

    async def application(self, application_id: ApplicationId) -> dict[str, Any] | None:
        """Return the state of an application; None if the id is unknown.

        Applications that the quotas hold back, or have refused recently, have a view too.
        """
        term = await self.term.admit_caller()
        await term.admission.is_stored(application_id)
        core, now = self.term.informed_core(), term.driver.now()
        application = core.state.applications.get(application_id)
        if application is not None:
            comes_back_s = term.gate.comes_back_s(application_id)
            return application_with_outlook(core, application, now, comes_back_s)
        unopened = term.gate.unopened_application(application_id)
        if unopened is None:
            return None
        return unopened_view(unopened, term.config.scheduler.quota_timeout_s)

    async def outlooks(self, application_ids: tuple[ApplicationId, ...]) -> dict[str, Any]:
        """Return the predicted starts of the live ones among some applications; see `listing`."""
        term = await self.term.admit_caller()
        return json_outlooks(self.term.informed_core(), application_ids, term.driver.now())

    async def applications(self, most: int, tenant: str | None = None) -> dict[str, Any]:
        """Return the first applications, of a tenant or of all, with their predicted starts."""
        term = await self.term.admit_caller()
        return listing(self.term.informed_core(), term.driver.now(), most, tenant)

    async def console_frame(
        self, tenant: ClientId | None, epoch: Epoch | None, number: int | None
    ) -> Told | None:
        """Return the model's present state for the console; see `SchedulerConsole.frame`."""
        await self.term.admit_caller()
        return self.console.frame(tenant, epoch, number)

    async def console_application(self, application_id: ApplicationId) -> bytes | None:
        await self.term.admit_caller()
        return self.console.application(application_id)

    async def console_history(self, lasts_s: Seconds) -> bytes:
        await self.term.admit_caller()
        return self.console.history(lasts_s)

    async def submit_many(
        self, ingress_id: IngressId, epoch: Epoch, ack: int, items: tuple[Submission, ...]
    ) -> IngressMail:
        """Submit a batch in order, and return the leases that can be granted at once.

        Raises:
            AdmissionError: If the scheduler receives no settings in time; nothing was accepted.
        """
        term = await self.term.admit_caller()
        if epoch != term.epoch:
            term.note_epoch(epoch)
            return IngressMail(term.epoch)
        if items and not term.has_settings.is_set():
            await term.await_settings()
        outboxes = term.driver.outboxes
        if ingress_id in outboxes.forgotten:
            return IngressMail(term.epoch, forgotten=True)
        outbox = outboxes.of_ingress(ingress_id)
        self._note_read(outbox, ack)
        if ingress_id not in term.driver.core.state.ingresses:
            # This call registers the ingress: the core drops messages to unknown ingresses.
            term.driver.apply(ev.IngressHeartbeat(ingress_id), outbox)
        for item in items:
            refusal = self._refusal_of_ended(item)
            if refusal is not None:
                outboxes.deliver([refusal], term.driver.core.state, outbox)
            elif isinstance(item, ev.InferenceSubmitted) and item.resubmitted:
                term.admit(self._with_count(item), outbox)
            else:
                term.admit(item, outbox)
        # The heartbeat follows the items, so it is no older than any lease in this answer.
        term.driver.apply(ev.IngressHeartbeat(ingress_id), outbox)
        return await self._ingress_mail(outbox, ack, self._applications_ahead(items))

    async def poll_grants(self, ingress_id: IngressId, epoch: Epoch, ack: int) -> IngressMail:
        """Return the ingress's unread messages; wait for a message if there is none."""
        term = await self.term.admit_caller()
        if epoch != term.epoch:
            term.note_epoch(epoch)
            return IngressMail(term.epoch)
        outboxes = term.driver.outboxes
        if ingress_id not in outboxes.forgotten:
            term.driver.apply(ev.IngressHeartbeat(ingress_id))
            outbox = outboxes.of_ingress(ingress_id)
            self._note_read(outbox, ack)
            outbox.unread_after(ack)  # This call drops the messages that the ingress has read.
            if not await outbox.wait(LONG_POLL_S):
                return IngressMail(term.epoch)
            if ingress_id not in outboxes.forgotten:
                return await self._ingress_mail(outbox, ack, {})
        term.check_lead()
        return IngressMail(term.epoch, forgotten=True)

    async def refuse_lease(
        self, request_id: RequestId, lease_id: LeaseId, reason: ev.NackReason
    ) -> bool:
        """Reclaim a lease that an ingress could not use; return whether the inference waits.

        False means that the inference has ended here, so the ingress has to submit it again.
        """
        term = await self.term.admit_caller()
        term.driver.apply(ev.LeaseNacked(lease_id, reason))
        return request_id in term.driver.core.state.inferences

    async def configure(self, settings: dict[str, Any]) -> Epoch:
        """Apply other scheduling settings from now on; the queue stays.

        Raises:
            ConfigError: If a setting is not allowed; the current settings stay.
        """
        term = await self.term.admit_caller()
        term.configure(settings)
        return term.epoch

    # --- calls of replicas

    async def pull(self, pull: Pull) -> ReplicaMail:
        """Process a replica's report, and lease it the first inferences that fit."""
        term = await self.term.admit_caller()
        if pull.epoch != term.epoch:
            term.note_epoch(pull.epoch)
            return ReplicaMail(term.epoch)
        driver = term.driver
        outbox = driver.outboxes.of_replica(pull.replica_id)
        report = outbox.accept_pull(pull, connected=pull.replica_id in self.connected)
        if report is None:
            return ReplicaMail(NOT_TAKEN)
        self.inspector.kv_meter.record_pull(pull, driver.now())
        if pull.prefill is not None and term.config.measures_prefill:
            # The cost must be noted before the report, whose tokens get this cost.
            term.note_prefill(pull.replica_id, pull.prefill)
        if pull.capacity.holds_contexts and driver.holds is None:
            driver.begin_holds()
        is_news = pull.failure is not None and pull.failure.failure_id != outbox.failure_id
        if pull.failure is not None and is_news:
            # After the report, inferences that ended with the engine would be leased again.
            outbox.failure_id = pull.failure.failure_id
            driver.apply(pull.failure)
        driver.apply(report)
        # Until this call is answered, the replica repeats the failure to a new scheduler.
        if is_news:
            await term.checkpointer.next_save()
            term.check_lead()
        self._sample_outlooks()
        if not await outbox.wait(pull.wait_s):
            return ReplicaMail(term.epoch)
        term.check_lead()
        driver.apply(ev.PullAnswered(pull.replica_id, pulls_again=True))
        return ReplicaMail(
            term.epoch,
            await term.collect_messages(outbox, pull.ack),
            backlog_kv_tokens=driver.core.state.counters.waiting_kv_tokens,
        )

    def replica_disconnected(self, replica_id: ReplicaId) -> None:
        """End the waiting call of a disconnected replica, so that it is granted nothing.

        Its leases stay, because a lost connection does not mean a lost replica. But a replica that
        does not reconnect is lost if it does not call in time.
        """
        if replica_id not in self.connected:
            self.term.driver.apply(ev.ReplicaDisconnected(replica_id))
        outbox = self.term.driver.outboxes.replicas.get(replica_id)
        if outbox is not None:
            outbox.notify()

    async def replica_crashed(self, replica_id: ReplicaId) -> None:
        """Mark the calls on a crashed replica as possible causes; repeated notices do nothing."""
        term = await self.term.admit_caller()
        outbox = term.driver.outboxes.replicas.get(replica_id)
        if outbox is not None and outbox.failure_id != replica_id:
            outbox.failure_id = replica_id
            term.driver.apply(ev.ReplicaCrashed(replica_id))

    async def leave(self, replica_id: ReplicaId) -> None:
        """Remove a replica that shuts down; its inferences wait again."""
        term = await self.term.admit_caller()
        term.driver.apply(ev.ReplicaLost(replica_id))

    # --- names of sessions and conversations, for ingresses

    async def claim_session(
        self, tenant: str, session: Name, own: str, parent: Name | None, parents: str | None
    ) -> str:
        """Return the application that belongs to a session of an agent program; see `Directory`."""
        await self.term.admit_caller()
        return self._directory.claim_session(tenant, session, own, parent, parents)

    async def find_conversation(self, tenant: str, names: tuple[Name, ...]) -> str | None:
        """Return the application of a conversation's first known name; see `Directory`."""
        await self.term.admit_caller()
        return self._directory.find_conversation(tenant, names)

    async def name_conversation(
        self, tenant: str, names: tuple[Name, ...], application_id: str
    ) -> None:
        """Record names of a conversation as names of its application; see `Directory`."""
        await self.term.admit_caller()
        self._directory.name_conversation(tenant, names, application_id)

    async def restore_names(self, tenant: str, names: tuple[tuple[Name, str], ...]) -> None:
        """Restore names that an ingress assigned to conversations and a new scheduler lacks."""
        await self.term.admit_caller()
        self._directory.restore_names(tenant, names)

    # --- autoscaling

    async def size(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """Return the wanted number of replicas at once; None while the number is unknown.

        Args:
            question: As for `FleetSizer.answer`.
        """
        term, core = self.term, self.term.driver.core
        if not term.standing()["ready"] or core.recovery.holding:
            return None  # unknown until the replicas have reported their leases
        return term.fleet.answer(core, term.driver.now(), question)

    # --- usage

    async def usage(self, days: list[Day]) -> dict[str, Any]:
        """Return usage by day and tenant, and the first day whose usage may still change.

        Raises:
            StoreError: If the store cannot be read.
        """
        term = await self.term.admit_caller()
        book = term.driver.core.state.usage
        stored = await term.checkpointer.load_usage(day for day in days if day not in book.totals)
        known = {
            day: {tenant: totals.record() for tenant, totals in book.totals[day].items()}
            for day in days
            if day in book.totals
        }
        # Even a new leader adds nothing to the days before the last checkpoint.
        saved_until = max(0.0, term.checkpointer.instant)
        return {"days": stored | known, "open_from": int(saved_until // DAY_S)}

    def _note_ended(self, application_id: ApplicationId, reason: Refusal) -> bool:
        """Record that an application's owner has ended it; return whether it was open."""
        driver = self.term.driver
        is_known = application_id in driver.core.state.applications
        if is_known:
            self._ended.note(application_id, reason, driver.now())
        return is_known

    def _refusal_of_ended(self, item: Submission) -> Refuse | RefuseApplication | None:
        """Return the refusal of a submission whose application its owner has ended; else None.

        Resubmitted items of a closed application are accepted: they may claim a lease, report an
        end to be counted, or have waited before the close. An application that has not ended yet is
        not refused, because an ingress forgets a refused application with its unconfirmed ends.
        """
        if not isinstance(item, ev.ApplicationArrived | ev.InferenceSubmitted):
            return None
        name, driver = item.application_id, self.term.driver
        if isinstance(item, ev.ApplicationArrived) and item.reopens and not item.resubmitted:
            self._reopen_application(name)
        reason = self._ended.refusal(name, driver.now())
        if reason is None and not item.resubmitted and name not in driver.core.state.applications:
            reason = self._ended_before.refusal(name, driver.now())
        if reason is None or (item.resubmitted and reason is not Refusal.APPLICATION_CANCELLED):
            return None
        if not item.resubmitted and name in self._reopening & driver.core.state.applications.keys():
            reason = Refusal.APPLICATION_ENDING
        if isinstance(item, ev.ApplicationArrived):
            if item.resubmitted and name in driver.core.state.applications:
                return None
            return RefuseApplication(name, item.ingress_id, reason)
        if item.lease_id is not None or item.outcome is not None:
            return None
        return Refuse(item.request_id, item.ingress_id, reason)

    def _reopen_application(self, application_id: ApplicationId) -> bool:
        """Allow new inferences under an application's id; return whether that is possible at once.

        A stopped application has to end completely before another one with its id claims quota;
        that takes longer while ingresses may still report inferences that ended under an earlier
        scheduler.
        """
        driver, live = self.term.driver, self.term.driver.core.state.applications
        known = live.get(application_id)
        if known is not None and not known.state.takes_inferences:
            driver.apply(ev.ApplicationReopened(application_id))
            if known.state.is_cancelled and application_id in live:
                self._reopening = {application_id, *(self._reopening & live.keys())}
                return False
        self._reopening.discard(application_id)
        self._ended.reopen(application_id)
        self._ended_before.reopen(application_id)
        return True

    def _sample_outlooks(self) -> None:
        """Periodically compute a predicted start, to measure the accuracy of predictions."""
        now = self.term.driver.now()
        if now - self._sampled_at >= WALK_KEPT_S:
            self._sampled_at = now
            loop = asyncio.get_running_loop()
            loop.call_soon(self.term.driver.core.outlooks.sample, now)

    def _with_count(self, item: ev.InferenceSubmitted) -> ev.InferenceSubmitted:
        """Return a resubmitted inference, marked as counted if its end was counted before."""
        ends = self.term.driver.core.state.ends
        is_counted = item.is_counted is False and ends.is_counted(
            item.application_id, item.request_id
        )
        return replace(item, is_counted=True) if is_counted else item

    def _note_read(self, outbox: Outbox, ack: int) -> None:
        for told in outbox.take_acknowledged(ack):
            self.term.driver.apply(ev.EndsAcknowledged(told))

    async def _ingress_mail(
        self, outbox: Outbox, ack: int, positions: dict[RequestId, int]
    ) -> IngressMail:
        """Return an ingress's unread messages, with the addresses of the replicas it calls."""
        term = self.term
        messages = await term.collect_messages(outbox, ack)
        replicas = term.driver.outboxes.replicas
        addresses = {
            message.replica_id: replica.last_pull.address
            for _, message in messages
            if isinstance(message, Grant)
            and (replica := replicas.get(message.replica_id)) is not None
            and replica.last_pull is not None
        }
        return IngressMail(
            term.epoch,
            messages,
            addresses=addresses,
            standings=self._quotas_of_granted(messages) if term.gate.has_quotas else {},
            positions=positions,
        )

    def _applications_ahead(self, items: tuple[Submission, ...]) -> dict[RequestId, int]:
        """Return the number of applications ahead of each new inference."""
        core, positions = self.term.driver.core, dict[RequestId, int]()
        for item in items:
            if not isinstance(item, ev.InferenceSubmitted) or item.resubmitted:
                continue
            inference = core.state.inferences.get(item.request_id)
            if inference is None:
                continue  # The inference was refused, held back, or ended within the batch.
            position: int | None = 0
            if inference.lease_id is None:
                position = core.outlooks.position(inference)
            if position is not None:
                positions[item.request_id] = position
        return positions

    def _quotas_of_granted(
        self, messages: tuple[tuple[int, IngressMessage], ...]
    ) -> dict[ClientId, tuple[LimitStanding, ...]]:
        """Return the quotas, with remaining amounts, of tenants with a lease in the messages."""
        gate, state = self.term.gate, self.term.driver.core.state
        granted = (
            state.inferences.get(message.request_id)
            for _, message in messages
            if isinstance(message, Grant)
        )
        tenants = {
            state.applications[inference.application_id].tenant
            for inference in granted
            if inference is not None
        }
        return {tenant: gate.standings(tenant) for tenant in sorted(tenants)}
