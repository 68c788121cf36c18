"""Parts of the service with one mistake each, which the simulation must find."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from justitia_ray.core import SchedulerCore
from justitia_ray.core.actions import Action, Grant
from justitia_ray.core.entities import FailureCause
from justitia_ray.core.events import LeaseFinished
from justitia_ray.errors import AttemptsExhausted
from justitia_ray.protocol.engine import Hold, ResponseHead
from justitia_ray.protocol.messages import IngressMail, Pull, ReplicaMail
from justitia_ray.protocol.stream_parts import Part, Resume
from justitia_ray.serve.ingress.scheduler_session import SchedulerAnswer, SchedulerSession
from justitia_ray.serve.replica.call_holds import CallHolds
from justitia_ray.serve.replica.puller import Puller
from justitia_ray.serve.scheduler.context_holds import ContextHolds
from justitia_ray.serve.scheduler.outboxes import Outbox, Outboxes
from justitia_ray.serve.transport.handshake import Key, Keyring
from justitia_ray.serve.transport.methods import Method
from justitia_ray.units import Epoch, LeaseId, Seconds
from tests.harness.simulation import broken_quotas
from tests.harness.simulation.parts import Parts, WatchedLeaseTable, WatchedOutboxes, WatchedService
from tests.harness.simulation.plan import (
    Ending,
    Fault,
    FaultKind,
    Plan,
    draw_plan,
    with_held_contexts,
    with_killer_call,
)
from tests.harness.simulation.run import SimulationRun, run_plan
from tests.harness.simulation.unusable_leases import WatchedQueueClient


class _HastyLine(Outbox):
    """Mutant of the outbox that treats delivered messages as read by the receiver."""

    def unread_after(self, ack: int) -> list[tuple[int, Any]]:
        unread = super().unread_after(ack)
        super().unread_after(self.last)
        return unread


class _HastyOutboxes(WatchedOutboxes):
    def of_ingress(self, ingress_id: str) -> Outbox:
        return self.ingresses.setdefault(ingress_id, _HastyLine(self._last_dropped))

    def of_replica(self, replica_id: str) -> Outbox:
        return self.replicas.setdefault(replica_id, _HastyLine(self._last_dropped))


class _HastyService(WatchedService):
    def make_outboxes(self) -> WatchedOutboxes:
        return _HastyOutboxes()


class _ServiceForAnyEpoch(WatchedService):
    """Mutant of the scheduler service that accepts calls meant for other schedulers."""

    async def submit_many(self, ingress_id: str, epoch: Epoch, ack: int, items: Any) -> IngressMail:
        mail = await super().submit_many(ingress_id, self.term.epoch, ack, items)
        return replace(mail, epoch=epoch) if epoch else mail

    async def poll_grants(self, ingress_id: str, epoch: Epoch, ack: int) -> IngressMail:
        mail = await super().poll_grants(ingress_id, self.term.epoch, ack)
        return replace(mail, epoch=epoch) if epoch else mail

    async def pull(self, pull: Pull) -> ReplicaMail:
        mail = await super().pull(replace(pull, epoch=self.term.epoch))
        return replace(mail, epoch=pull.epoch) if pull.epoch else mail


class _ServiceThatShiftsTags(WatchedService):
    """Mutant of the scheduler service that restores GPS's virtual time slightly too low."""

    def note_lead(self) -> None:
        for session in self.core.ledger.fair_share.sessions().values():
            session.finish += 1.0
        super().note_lead()


class _LeaseTableThatTellsOnce(WatchedLeaseTable):
    """Mutant of the lease table that does not repeat the report of an ended lease."""

    def report_ends(self) -> tuple[LeaseFinished, ...]:
        finished = super().report_ends()
        self.unconfirmed.clear()
        return finished


class _LeaseTableThatForgetsWhatEnded(WatchedLeaseTable):
    """Mutant of the lease table that does not report confirmed ends to a new scheduler."""

    def report_ends_again(self) -> None:
        self._remembered.clear()


class _LeaseTableThatTellsCallersFirst(WatchedLeaseTable):
    """Mutant of the lease table that reports an engine's death to callers too early."""

    def note_engine_failed(self, cause: FailureCause) -> None:
        super().note_engine_failed(cause)
        self.failure_told.set()


class _ServiceThatBlamesNothing(WatchedService):
    """Mutant of the scheduler service that does not count engine deaths by call."""

    def note_lead(self) -> None:
        self.core.suspects.deaths_allowed = 0
        super().note_lead()


class _ServiceThatHearsOfNoCrash(WatchedService):
    """Mutant of the scheduler service that treats crashed replica processes as killed ones."""

    async def replica_crashed(self, replica_id: str) -> None:
        pass


class _ServiceThatKeepsNothingApart(WatchedService):
    """Mutant of the scheduler service that leases all suspects of an engine death together."""

    def note_lead(self) -> None:
        self.core.suspects.separate_suspects = lambda: None
        super().note_lead()


class _PullerThatTellsEndsAlone(Puller):
    """Mutant of the puller that reports its leases only to a new scheduler."""

    def _next_pull(self, now: Seconds, wait_s: Seconds | None = None) -> Pull:
        told_before = self._progress_due_at > 0.0
        pull = super()._next_pull(now, wait_s)
        return replace(pull, progress=None) if told_before else pull


class _PullerForAnyEpoch(Puller):
    """Mutant of the puller that follows every scheduler that answers, even a replaced one."""

    def _take_epoch(self, epoch: Epoch) -> None:
        if epoch != self.epoch:
            self.epoch = 0
            super()._take_epoch(epoch)


class _HoldsWithoutEnd(CallHolds):
    """Mutant of the replica's held contexts, which never expire."""

    def take(self, lease_id: LeaseId) -> Hold | None:
        hold = super().take(lease_id)
        return hold and Hold(hold.application_id, hold.for_s and 1e6)


class _ServiceThatForgetsWhoHolds(WatchedService):
    """Mutant of the scheduler service that never releases contexts of ended applications."""

    def note_lead(self) -> None:
        self.term.driver.holds = _HoldsOfNoEnd()
        super().note_lead()


class _HoldsOfNoEnd(ContextHolds):
    def post(self, actions: Sequence[Action], core: SchedulerCore, outboxes: Outboxes) -> None:
        super().post([one for one in actions if isinstance(one, Grant)], core, outboxes)


class _SessionThatSendsOnce(SchedulerSession):
    """Mutant of the ingress session that resubmits nothing to a new scheduler."""

    def _submit_everything(self, *, resubmitted: bool) -> None:
        self._cursor.reset()


class _SessionWithoutReason(SchedulerSession):
    """Mutant of the ingress session that does not read why its lease had ended."""

    async def _read_reason(self, asked: Any) -> SchedulerAnswer:
        return SchedulerAnswer()


class _KeyringThatForgets(Keyring):
    """Mutant of the keyring that uses the first key for ever."""

    def add(self, key: Key) -> None:
        if not self.keys:
            super().add(key)


_METHODS_WITHOUT_RUNS = {
    "unary": Method((str, str, dict[str, str], bytes), tuple[int, dict[str, str], bytes]),
    "stream": Method(
        (str, str, dict[str, str], bytes, Resume | None), ResponseHead | Part, streams=True
    ),
}
"""Methods without cancellation: a call continues after its caller disconnects."""


class _ClientThatSendsOnce(WatchedQueueClient):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.session.__class__ = _SessionThatSendsOnce


class _ClientWithoutReason(WatchedQueueClient):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.session.__class__ = _SessionWithoutReason


class _ClientThatGivesUpEarly(WatchedQueueClient):
    """Mutant of the queue client that gives up at the first unusable lease."""

    async def nack_lease(self, *parts: Any) -> None:
        await super().nack_lease(*parts)
        raise AttemptsExhausted("gave up after 1 attempts")


def _cut_replicas_off(plan: Plan) -> Plan:
    faults = (
        Fault(FaultKind.PORT_BLOCKED, at_s=2.0, for_s=3.0, party=replica, other=2, both=True)
        for replica in range(plan.replicas)
    )
    return replace(plan, ingresses=1, faults=tuple(faults))


def _cut_before_a_crash(plan: Plan) -> Plan:
    """Fault plan that loses answers, then kills the scheduler before the ingress notices."""
    silent = (
        Fault(FaultKind.HALF_OPEN, at_s=2.0, for_s=0.3, party=replica, other=2, both=True)
        for replica in range(plan.replicas)
    )
    crash = Fault(FaultKind.SCHEDULER_CRASH, at_s=5.0, for_s=1.0)
    return replace(plan, ingresses=1, faults=(*silent, crash))


def _with_killer_prompt(plan: Plan) -> Plan:
    """Fault plan in which a call kills engines."""
    return with_killer_call(replace(plan, faults=()))


def _cancelled_in_a_storm(plan: Plan) -> Plan:
    """Fault plan in which applications are cancelled while messages are late."""
    kinds = (FaultKind.STORM, FaultKind.STORE_SLOW)
    return replace(
        plan,
        faults=tuple(Fault(kind, at_s=0.5, for_s=20.0) for kind in kinds),
        applications=tuple(
            replace(application, application_id=f"a{number}", ending=Ending.CANCEL)
            for number, application in enumerate(plan.applications)
        ),
    )


_SEEDS = 30


@dataclass(frozen=True, slots=True)
class Broken:
    """A mutant of the product, and the simulation that finds it."""

    parts: Parts
    seed: int
    """First seed of the search for a simulation that finds the mutant."""
    check: str
    """Name of the check that must fail for the mutant."""
    shape: Callable[[Plan], Plan] = lambda plan: plan
    """Function that changes a random fault plan so that the mutant is likely to be found."""

    def find(self) -> SimulationRun | None:
        for seed in range(self.seed, self.seed + _SEEDS):
            simulated = run_plan(self.shape(draw_plan(seed)), self.parts)
            if simulated.failures and simulated.failures[0].check == self.check:
                return simulated
        return None


BROKEN: dict[str, Broken] = {
    "mail that was handed over is dropped": Broken(
        Parts(service=_HastyService), 13, "nothing_is_left_over"
    ),
    "holds have no end": Broken(
        Parts(holds=_HoldsWithoutEnd), 0, "nothing_is_left_over", with_held_contexts
    ),
    "holds of ended applications are kept in mind": Broken(
        Parts(service=_ServiceThatForgetsWhoHolds), 0, "nothing_is_left_over", with_held_contexts
    ),
    "epochs are ignored": Broken(
        Parts(service=_ServiceForAnyEpoch), 15, "every_call_has_its_answer"
    ),
    "tags are put back wrong": Broken(
        Parts(service=_ServiceThatShiftsTags), 22, "tags_survive_restarts"
    ),
    "ends are told once": Broken(
        Parts(leases=_LeaseTableThatTellsOnce),
        0,
        "what_has_ended_does_not_run_again",
        _cut_before_a_crash,
    ),
    "a new scheduler is told nothing of what ended": Broken(
        Parts(leases=_LeaseTableThatForgetsWhatEnded),
        3,
        "what_has_ended_does_not_run_again",
        _cut_before_a_crash,
    ),
    "progress is told once": Broken(
        Parts(puller=_PullerThatTellsEndsAlone), 32, "every_call_has_its_answer"
    ),
    "a replica listens to lower epochs": Broken(
        Parts(puller=_PullerForAnyEpoch), 60, "known_epochs_only_rise"
    ),
    "nothing is submitted again": Broken(
        Parts(client=_ClientThatSendsOnce), 11, "every_call_has_its_answer"
    ),
    "calls outlive their callers": Broken(
        Parts(replica_methods=_METHODS_WITHOUT_RUNS), 0, "payloads_end_with_their_callers"
    ),
    "no second key is learned": Broken(
        Parts(keyring=_KeyringThatForgets), 15, "every_call_has_its_answer"
    ),
    "calls are given up at the first lease": Broken(
        Parts(client=_ClientThatGivesUpEarly), 0, "every_call_has_its_answer", _cut_replicas_off
    ),
    "nobody asks why a lease ended": Broken(
        Parts(client=_ClientWithoutReason),
        58,
        "what_was_refused_is_not_asked_anew",
        _cancelled_in_a_storm,
    ),
    "callers hear of a dead engine first": Broken(
        Parts(leases=_LeaseTableThatTellsCallersFirst),
        0,
        "killers_take_few_engines",
        _with_killer_prompt,
    ),
    "nothing is blamed for dead engines": Broken(
        Parts(service=_ServiceThatBlamesNothing),
        0,
        "every_call_has_its_answer",
        _with_killer_prompt,
    ),
    "nothing is said of crashes": Broken(
        Parts(service=_ServiceThatHearsOfNoCrash),
        0,
        "every_call_has_its_answer",
        _with_killer_prompt,
    ),
    "suspects run together": Broken(
        Parts(service=_ServiceThatKeepsNothingApart), 0, "core_invariants", _with_killer_prompt
    ),
    "accounts forget claims": Broken(
        Parts(accounts=broken_quotas.AccountsThatForgetClaims),
        0,
        "use_is_counted_once",
        broken_quotas.kill_accounts_repeatedly,
    ),
    "claims are given back unused": Broken(
        Parts(service=broken_quotas.ServiceThatCountsNothing),
        0,
        "use_is_counted_once",
        broken_quotas.with_quotas,
    ),
    "nobody says which claims live": Broken(
        Parts(service=broken_quotas.ServiceWithoutSurvivors),
        0,
        "nothing_is_left_over",
        broken_quotas.kill_scheduler_and_ingresses,
    ),
    "what is in flight is not reserved": Broken(
        Parts(service=broken_quotas.ServiceThatReservesNothing),
        0,
        "limits_hold",
        broken_quotas.with_quotas,
    ),
    "claims outlive their inferences": Broken(
        Parts(service=broken_quotas.ServiceThatKeepsClaims),
        0,
        "nothing_is_left_over",
        broken_quotas.with_quotas,
    ),
    "answered inferences are not told of": Broken(
        Parts(client=broken_quotas.ClientThatKeepsNoEnds),
        0,
        "usage_is_what_ran",
        broken_quotas.kill_scheduler_repeatedly,
    ),
    "ended applications are not told of": Broken(
        Parts(client=broken_quotas.ClientThatForgetsApplications),
        0,
        "usage_is_what_ran",
        broken_quotas.kill_scheduler_repeatedly,
    ),
    "what is counted is counted again": Broken(
        Parts(service=broken_quotas.ServiceThatCountsAgain),
        0,
        "usage_is_what_ran",
        broken_quotas.kill_scheduler_repeatedly,
    ),
    "ends are said to be stored too early": Broken(
        Parts(service=broken_quotas.ServiceWithHastyEnds),
        14,
        "usage_is_what_ran",
        broken_quotas.kill_scheduler_during_slow_saves,
    ),
    "usage is saved apart": Broken(
        Parts(store=broken_quotas.StoreThatSavesUsageApart),
        0,
        "usage_is_what_ran",
        broken_quotas.kill_scheduler_during_slow_saves,
    ),
    "totals are final before they are saved": Broken(
        Parts(service=broken_quotas.ServiceWithHastyUsage),
        0,
        "final_totals_are_final",
        broken_quotas.midnight_without_store,
    ),
}
