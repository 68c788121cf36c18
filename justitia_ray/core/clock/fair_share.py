"""Accounts: charges, service and refunds of applications, for each kind of clock.

`ServedShare` (ours, the default) moves V by the service that the replicas really delivered, and
settles each account against what its application attained. `NominalShare` is the paper's: V moves
at the nominal rate of the machine while any session is active, and a tag never changes.

Served clock, for each report of a replica, in this order (`att` attained, `chg` charged so far):

1. att += δ; while att > chg: charge(chg), and chg doubles; 2. serve(Σδ); 3. finished, cancelled or
expired: refund(chg − att), chg = att; 4. nothing waiting, leased or running (a tool gap):
refund(chg − att), it is *withdrawn*; 5. its next submission: charge(chg − att); 6. arrivals: chg =
max(2, Ĉ), charge(chg); 7. expected to need r from now on, at a new stage: charge(att + r − chg) if
that is above 0, and
   chg = att + r. Not in the paper. Expecting less changes nothing: F never falls by an estimate.
8. With a cost of prefill: chg contains the prefill that is predicted, and at least what was paid
   and what the submitted prompts are expected to cost; the difference is charged or refunded.

Rules 1 and 3 are *settling*: a mispredicted giant keeps its place for at most twice its charge and
its work in flight. Without rule 3 applications starve under a served clock: service that GPS gave
to an application that never needed the service would hold V back for all others. Rules 4 and 5 take
the credit from applications that wait for their tools.

Invariant: Σ over active of w·(F − V) = Σ over not withdrawn of (chg − att).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from justitia_ray.core.clock.virtual_clock import GpsSession, VirtualClock
from justitia_ray.core.records import Fields, Record, RecordReader, read_fields
from justitia_ray.core.tenants import TenantTree
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, Seconds, VirtualTime

MINIMUM_CHARGE: KvTokenTime = 2
"""Minimum charge of an application: the cost of one output token after one prompt token."""

SESSION_FIELDS: Fields = {
    "finish": RecordReader.number,
    "weight": RecordReader.positive,
    "sequence": RecordReader.integer,
}
"""Names of the fields in the stored record of an application's GPS session."""


@dataclass(slots=True)
class Account:
    """Service charged to an application, and service that it has received."""

    weight: float
    sequence: int
    charged: KvTokenTime
    attained: KvTokenTime = 0
    withdrawn: bool = False
    settlements: int = 0
    """Number of times that the charge was doubled because the service exceeded it (rule 1)."""


class ServedShare:
    """GPS accounts of all live applications; delivered service moves virtual time.

    Base of all kinds of accounts; `clock` has the GPS sessions.
    """

    moves_with_time: ClassVar[bool] = False
    """Whether virtual time moves with time (`advance`) instead of service."""
    sets_apart: ClassVar[bool] = False
    """Whether service is shared between tenants instead of applications. Then a charge may move the
    tags of other applications (`take_retagged_tenants`), and applications beyond a quota have a
    separate clock (`move`) and keep their weight.
    """

    def __init__(self, clock: VirtualClock | None = None) -> None:
        self.clock = clock if clock is not None else VirtualClock()
        self.accounts: dict[ApplicationId, Account] = {}
        self.served: KvTokenTime = 0
        """Service of all applications so far, in token·iterations."""
        self._moved: dict[ApplicationId, None] | None = None

    def watch(self) -> dict[ApplicationId, None]:
        """Return a set to which applications are added when their tags or charges change.

        The set contains all sessions at first; the reader empties it. There is one reader: a new
        one replaces it.
        """
        self._moved = dict.fromkeys(self.clock.sessions())
        return self._moved

    def unwatch(self) -> None:
        self._moved = None

    def advance(self, now: Seconds) -> None:
        """Move virtual time to `now` under a nominal clock; otherwise do nothing."""

    def set_rate(self, kv_tokens: int, now: Seconds) -> None:
        """Set the total KV memory of all replicas; used only by the nominal clock."""

    def arrive(
        self,
        application_id: ApplicationId,
        cost: KvTokenTime,
        weight: float,
        sequence: int,
        tenant: str = "",
    ) -> None:
        """Open an account with the predicted cost Ĉ as its charge, at least 2 (rule 6)."""
        charge = max(MINIMUM_CHARGE, cost)
        account = self.accounts[application_id] = Account(weight, sequence, charge)
        self._charge_application(application_id, account, charge)

    def deliver(
        self, deliveries: Iterable[tuple[ApplicationId, KvTokenTime]]
    ) -> list[ApplicationId]:
        """Book the service of a report (rules 1 and 2); return the applications charged again."""
        return self._book_deliveries(deliveries, self.clock)

    def _book_deliveries(
        self, deliveries: Iterable[tuple[ApplicationId, KvTokenTime]], clock: VirtualClock
    ) -> list[ApplicationId]:
        """Book the service of applications that share one GPS clock."""
        total: KvTokenTime = 0
        recharged: list[ApplicationId] = []
        moved = self._moved
        for application_id, amount in deliveries:
            account = self.accounts[application_id]
            account.attained += amount
            total += amount
            if moved is not None:
                moved[application_id] = None
            while account.attained > account.charged:
                self._charge_application(application_id, account, account.charged)
                account.charged *= 2
                account.settlements += 1
                recharged.append(application_id)
        self.served += total
        clock.serve(total)
        return recharged

    def adjust_prefill_charge(self, application_id: ApplicationId, amount: KvTokenTime) -> None:
        """Change an application's charge for computing a prompt (rule 8).

        A withdrawn application is charged when it submits (rule 5). A charge never falls below the
        service attained.
        """
        account = self.accounts[application_id]
        amount = max(amount, account.attained - account.charged)
        account.charged += amount
        if account.withdrawn or not amount:
            return
        if amount > 0:
            self._charge_application(application_id, account, amount)
        else:
            if self._moved is not None:
                self._record_changed(application_id)
            self._refund_application(application_id, -amount)

    def miss(self, application_id: ApplicationId, amount: KvTokenTime) -> KvTokenTime:
        """Charge a tenant for a recomputed prompt for which the application's tag does not pay.

        Return the service by which V moved: 0 here, because only tenants pay it.
        """
        return 0

    def withdraw(self, application_id: ApplicationId) -> None:
        """Refund the unserved charge of an idle application (rule 4)."""
        account = self.accounts[application_id]
        if not account.withdrawn:
            account.withdrawn = True
            if self._moved is not None:
                self._record_changed(application_id)
            self._refund_application(application_id, account.charged - account.attained)

    def resume(self, application_id: ApplicationId) -> bool:
        """Charge again what rule 4 refunded (rule 5); return whether there was a refund."""
        account = self.accounts[application_id]
        if not account.withdrawn:
            return False
        account.withdrawn = False
        self._charge_application(application_id, account, account.charged - account.attained)
        return True

    def expect(self, application_id: ApplicationId, remaining: KvTokenTime) -> bool:
        """Raise a charge to the service expected at a new stage (rule 7); return whether it rose.

        A withdrawn application is charged for it when it submits (rule 5).
        """
        account = self.accounts[application_id]
        missing = account.attained + remaining - account.charged
        if missing <= 0:
            return False
        account.charged += missing
        if not account.withdrawn:
            self._charge_application(application_id, account, missing)
        return True

    def settle(self, application_id: ApplicationId) -> VirtualTime:
        """Close an account: refund the unserved charge (rule 3), and return the final tag."""
        self.withdraw(application_id)
        self._record_changed(application_id)
        del self.accounts[application_id]
        return self._release_application(application_id)

    def reweigh(self, application_id: ApplicationId, weight: float) -> None:
        """Change an application's weight: refund its charge, then charge it again."""
        account = self.accounts[application_id]
        was_withdrawn = account.withdrawn
        self.withdraw(application_id)
        account.weight = weight
        self._reweigh_application(application_id, weight)
        if not was_withdrawn:
            self.resume(application_id)

    def move(self, application_id: ApplicationId, leaf: ClientId, weight: float) -> None:
        """Move an application to another tenant; without tenants only change its weight.

        Received service stays with the old leaf.
        """
        self.reweigh(application_id, weight)

    def tag(self, application_id: ApplicationId) -> VirtualTime:
        """Return the tag F of an application, the virtual time at which GPS finishes it.

        If it is withdrawn, the tag that a submission now would give it.
        """
        account = self.accounts[application_id]
        finish = self.clock.session(application_id).finish
        if not account.withdrawn:
            return finish
        owed = account.charged - account.attained
        return max(finish, self.clock.virtual_time) + owed / account.weight

    def tag_in_tenant(self, application_id: ApplicationId) -> VirtualTime:
        """Return the tag that orders the applications of one tenant; without tenants F."""
        return self.tag(application_id)

    def take_retagged_tenants(self) -> list[ClientId]:
        """Return the tenants whose tags have changed since the last call; empty without tenants."""
        return []

    def take_reordered_tenants(self) -> list[ClientId]:
        """Return the tenants whose order must be rebuilt; empty without tenants."""
        return []

    def apply_weights(self, tree: TenantTree) -> None:
        """Apply the weights of a changed tenant tree; do nothing without tenants."""

    def take_changed(self) -> list[ApplicationId]:
        """Return the ended applications that GPS has dropped since the last call."""
        return self.clock.take_forgotten()

    def sessions(self) -> dict[ApplicationId, GpsSession]:
        """Return the GPS sessions of live applications, and of ended ones that GPS still owes.

        Takes O(N).
        """
        return self.clock.sessions()

    def session_record(self, application_id: ApplicationId) -> Record | None:
        """Return the stored form of an application's GPS session, or None."""
        if application_id not in self.clock:
            return None
        session = self.clock.session(application_id)
        return {"finish": session.finish, "weight": session.weight, "sequence": session.sequence}

    def clock_state(self) -> dict[str, Any]:
        """Return what a snapshot stores beside virtual time; empty without tenants."""
        return {}

    def can_restore(self, tenants: Iterable[ClientId], clock_state: Mapping[str, Any]) -> bool:
        """Return whether stored records of these tenants can be restored into these accounts."""
        return True

    def restore_clock_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `clock_state`; called before `prepare_restore`.

        Raises:
            ValueError: If the state has another form.
        """

    def end_restore(self) -> None:
        """Finish a restore, after all sessions and accounts are restored."""

    def prepare_restore(self, application_id: ApplicationId, record: Record) -> None:
        """Restore a tenant's state from an application's record; do nothing without tenants.

        Call before `restore_session`.

        Raises:
            ValueError: If the record has another form.
        """

    def restore_session(self, application_id: ApplicationId, record: Record, *, live: bool) -> None:
        """Restore an application's GPS session; the caller restores the account.

        Raises:
            ValueError: If the record is not from `session_record`.
        """
        fields = read_fields(record, SESSION_FIELDS)
        self._record_changed(application_id)
        self.clock.restore_session(application_id, **fields, released=not live)

    def _record_changed(self, application_id: ApplicationId) -> None:
        if self._moved is not None:
            self._moved[application_id] = None

    def _charge_application(
        self, application_id: ApplicationId, account: Account, amount: KvTokenTime
    ) -> None:
        if self._moved is not None:
            self._record_changed(application_id)
        self.clock.charge(application_id, amount, account.weight, account.sequence)

    def _refund_application(self, application_id: ApplicationId, amount: KvTokenTime) -> None:
        self.clock.refund(application_id, amount)

    def _reweigh_application(self, application_id: ApplicationId, weight: float) -> None:
        self._record_changed(application_id)
        self.clock.reweigh(application_id, weight)

    def _release_application(self, application_id: ApplicationId) -> VirtualTime:
        """Release the GPS session of an application that has ended; return its final tag."""
        final = self.clock.session(application_id).finish
        self.clock.release(application_id)
        return final


class UnsettledShare(ServedShare):
    """GPS accounts whose charges never change after arrival, for studies of rules 1, 3 and 7.

    An overestimated application holds V back for good; an underestimated one keeps its place.
    """

    def deliver(
        self, deliveries: Iterable[tuple[ApplicationId, KvTokenTime]]
    ) -> list[ApplicationId]:
        total: KvTokenTime = 0
        for application_id, amount in deliveries:
            self.accounts[application_id].attained += amount
            total += amount
        self.clock.serve(total)
        return []

    def withdraw(self, application_id: ApplicationId) -> None: ...

    def expect(self, application_id: ApplicationId, remaining: KvTokenTime) -> bool:
        """Leave the charge unchanged, so that an underestimated application keeps its tag."""
        return False


class NominalShare(UnsettledShare):
    """GPS accounts under the paper's clock: virtual time rises by M per iteration (v1, Eq. 2).

    Tags never change, not even in tool gaps.

    The rate is in token·iterations per second: M tokens of KV memory over an iteration of
    `iteration_s`. A rate without the iterations would turn the order into shortest-job-first.
    """

    moves_with_time = True

    def __init__(self, iteration_s: Seconds, clock: VirtualClock | None = None) -> None:
        super().__init__(clock)
        self._iteration_s = iteration_s
        self._rate: float = 0
        self._advanced_to: Seconds | None = None

    def advance(self, now: Seconds) -> None:
        if self._advanced_to is not None and now > self._advanced_to:
            self.clock.serve((now - self._advanced_to) * self._rate)
        self._advanced_to = now if self._advanced_to is None else max(self._advanced_to, now)

    def set_rate(self, kv_tokens: int, now: Seconds) -> None:
        self.advance(now)
        self._rate = kv_tokens / self._iteration_s

    def deliver(
        self, deliveries: Iterable[tuple[ApplicationId, KvTokenTime]]
    ) -> list[ApplicationId]:
        """Book the service of a report, which moves neither virtual time nor a tag."""
        for application_id, amount in deliveries:
            self.accounts[application_id].attained += amount
        return []
