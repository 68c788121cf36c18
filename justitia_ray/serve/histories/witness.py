"""What is seen while a history runs, and the rules that hold at every step."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from justitia_ray.core import SchedulerCore
from justitia_ray.core.actions import Abort, Action, EndApplication, Grant, Refusal, Refuse
from justitia_ray.core.entities import Application
from justitia_ray.core.invariants import InvariantViolation, check
from justitia_ray.cost import choices_kv_token_time
from justitia_ray.serve.engine import Progress
from justitia_ray.serve.histories.claims import FinishedLease
from justitia_ray.serve.histories.process import Process
from justitia_ray.serve.histories.redis_memory import Tags
from justitia_ray.serve.histories.story import Story
from justitia_ray.units import (
    ApplicationId,
    Epoch,
    KvTokenTime,
    LeaseId,
    ReplicaId,
    RequestId,
    Seconds,
)

_MOST_FAILURES = 20


@dataclass(frozen=True, slots=True)
class Failure:
    """A rule that did not hold."""

    check: str
    at_s: Seconds
    """Virtual seconds since the history began."""
    detail: str

    def __str__(self) -> str:
        return f"{self.check} at {self.at_s:.3f} s: {self.detail}"


@dataclass(slots=True)
class GrantedLease:
    """What is known of one lease, over all schedulers."""

    request_id: str
    application_id: ApplicationId
    choices: int
    used: KvTokenTime = 0
    """h of what was produced under it, once it has ended."""


class Witness:
    """Sees every decision, every lease armed and every token made."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.failures: list[Failure] = []
        self.failed = asyncio.Event()
        self.leases: dict[LeaseId, GrantedLease] = {}
        self.holders: dict[LeaseId, object] = {}
        """Engines under which a lease runs."""
        self.grants = 0
        self.ended: dict[ApplicationId, int] = {}
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._by_application: dict[ApplicationId, list[GrantedLease]] = {}
        self._offices: dict[Epoch, object] = {}
        self.finished: dict[LeaseId, FinishedLease] = {}
        """Made to their ends, and not aborted."""
        self._refused: set[tuple[Epoch, RequestId]] = set()
        self._named: dict[Process, Epoch] = {}

    @property
    def now(self) -> Seconds:
        """Virtual seconds since the history began."""
        return self._loop.time() - self._began_at

    def fail(self, check: str, detail: str) -> None:
        """Note that a rule did not hold."""
        if len(self.failures) < _MOST_FAILURES:
            self.failures.append(Failure(check, self.now, detail))
            self.tell("!", f"{check}: {detail}")
        self.failed.set()

    def tell(self, who: str, text: str) -> None:
        """Add to the story."""
        if self.story.told:
            self.story.tell(self.now, f"{who:<12} {text}")

    def names(self, process: Process, epoch: Epoch) -> None:
        """A process calls the scheduler of an epoch: never of a lower one than before."""
        before = self._named.get(process, 0)
        if epoch < before:
            self.fail("known_epochs_only_rise", f"{process.name} goes from {before} to {epoch}")
        self._named[process] = max(before, epoch)

    # --- the scheduler

    def took_office(self, epoch: Epoch, core: SchedulerCore, stored: Tags | None) -> None:
        """A scheduler is in office: epochs are never shared, and tags are what they were."""
        self.tell(f"scheduler-{epoch}", f"in office, {len(core.state.applications)} applications")
        if epoch in self._offices:
            self.fail("epochs_are_of_one_scheduler", f"epoch {epoch} was given out twice")
        self._offices[epoch] = core
        if stored is None:
            return
        found = tags_of(core)
        if found != stored:
            names = sorted(found.keys() | stored.keys())
            pairs = {name: (stored.get(name), found.get(name)) for name in names}
            changes = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
            self.fail("tags_survive_restarts", f"(before, after): {changes}")

    def handled(self, core: SchedulerCore) -> None:
        """A scheduler has handled an event: its state keeps the core's rules."""
        try:
            check(core)
        except InvariantViolation as violation:
            self.fail("core_invariants", str(violation))

    def submitted(self, epoch: Epoch, request_id: RequestId) -> None:
        """An inference is submitted: not one that this scheduler has refused, by another name.

        A scheduler that does not know the application may be told of it.
        """
        if request_id.endswith("+") and (epoch, request_id[:-1]) in self._refused:
            self.fail("what_was_refused_is_not_asked_anew", request_id)

    def decided(self, epoch: Epoch, core: SchedulerCore, actions: Sequence[Action]) -> None:
        """A scheduler has decided something: grants are in order, bookings explained."""
        granted: list[Application] = []
        for action in actions:
            if isinstance(action, Grant):
                granted.append(self._granted(core, action))
            elif isinstance(action, EndApplication):
                self._application_ended(action)
            elif isinstance(action, Refuse) and action.reason is not Refusal.UNKNOWN_APPLICATION:
                self._refused.add((epoch, action.request_id))
            if self.story.told:
                self.tell(f"scheduler-{epoch}", _told(action))
        if granted:
            self._check_order(core, granted)

    def _granted(self, core: SchedulerCore, grant: Grant) -> Application:
        inference = core.state.inferences[grant.request_id]
        lease = GrantedLease(grant.request_id, inference.application_id, inference.choices)
        if grant.lease_id in self.leases:
            self.fail("leases_have_names_of_their_own", f"{grant.lease_id} was granted twice")
        self.leases[grant.lease_id] = lease
        self._by_application.setdefault(inference.application_id, []).append(lease)
        self.grants += 1
        return core.state.applications[inference.application_id]

    def _check_order(self, core: SchedulerCore, granted: list[Application]) -> None:
        """What was granted comes before all that still waits, by the policies that have tags."""
        order = core.order
        if order.policy_name not in ("justitia", "app-fcfs"):
            return
        if order.options.fairness == "tenant":
            return  # a grant may complete a tenant's first application, and its key changes
        waiting = [a for a in core.state.applications.values() if a.waiting]
        if not waiting:
            return

        def key(application: Application) -> tuple[float, int]:
            tag = core.tag(application.application_id) if order.policy_name == "justitia" else 0.0
            return (tag, application.sequence)

        first = min(waiting, key=key)
        for application in granted:
            if key(application) > key(first):
                self.fail(
                    "grants_follow_the_order",
                    f"{application.application_id} {key(application)} was granted before"
                    f" {first.application_id} {key(first)}",
                )

    def _application_ended(self, ended: EndApplication) -> None:
        """No more is booked for an application than its leases have produced."""
        application_id = ended.application_id
        self.ended[application_id] = self.ended.get(application_id, 0) + 1
        produced = sum(lease.used for lease in self._by_application.get(application_id, ()))
        produced += sum(
            self._so_far(lease_id)
            for lease_id in self.holders
            if self.leases[lease_id].application_id == application_id
        )
        if ended.kv_token_time > produced + 1e-6 * (1 + produced):
            self.fail(
                "service_is_explained",
                f"{application_id} was booked {ended.kv_token_time}, {produced} was produced",
            )

    def _so_far(self, lease_id: LeaseId) -> KvTokenTime:
        progress: Progress = self.holders[lease_id].progress(lease_id)  # type: ignore[attr-defined]
        return self._cost(lease_id, progress)

    def _cost(self, lease_id: LeaseId, used: Progress) -> KvTokenTime:
        choices = self.leases[lease_id].choices
        return choices_kv_token_time(used.prompt_tokens, used.output_tokens, choices)

    # --- replicas

    def armed(self, replica: str, lease_id: LeaseId, known: Epoch) -> None:
        """A replica has taken a lease: of no scheduler that it knows to be replaced."""
        self.tell(replica, f"arms {lease_id}")
        if _epoch_of(lease_id) < known:
            self.fail(
                "no_lease_of_a_lower_epoch_is_armed",
                f"{replica} knows epoch {known} and arms {lease_id}",
            )

    def runs(self, replica: str, lease_id: LeaseId, engine: object) -> None:
        """A payload runs."""
        self.tell(replica, f"runs {lease_id}")
        self.holders[lease_id] = engine

    def made(self, replica: ReplicaId, lease_id: LeaseId, first_pull: int) -> None:
        """An inference was made to its end; the pulls of its replica tell of it from one on."""
        self.finished[lease_id] = FinishedLease(replica, first_pull, self.now)

    def ran(self, replica: str, lease_id: LeaseId, used: Progress) -> None:
        """A payload has ended, however it did."""
        if self.holders.pop(lease_id, None) is not None:
            self.leases[lease_id].used += self._cost(lease_id, used)
            self.tell(replica, f"ends {lease_id} after {used.output_tokens} tokens")


def tags_of(core: SchedulerCore) -> Tags:
    """Return the tags of all live applications."""
    return {name: core.tag(name) for name in core.state.applications}


def _epoch_of(lease_id: LeaseId) -> Epoch:
    return int(lease_id.partition("-")[0])


def _told(action: Action) -> str:
    if isinstance(action, Grant):
        return f"grants {action.lease_id} to {action.request_id} on {action.replica_id}"
    if isinstance(action, Abort):
        return f"aborts {action.lease_id} on {action.replica_id}"
    if isinstance(action, EndApplication):
        return f"ends {action.application_id}: {action.outcome}, {action.inferences} inferences"
    return f"says {action}"
