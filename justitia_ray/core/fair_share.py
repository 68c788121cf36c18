"""When applications are charged, served, refunded: the clock rules, for each clock.

`ServedShare` (ours, the default) moves V by the service that the replicas really delivered, and
settles each account against what its application attained. `NominalShare` in `unsettled_share` is
the paper's: V moves at the nominal rate of the machine while anybody is active, and a tag never
changes.

Served clock, for each report of a replica, in this order (`att` attained, `chg` charged so far):

1. att += δ; while att > chg: charge(chg), and chg doubles;
2. serve(Σδ);
3. finished, cancelled or expired: refund(chg − att), chg = att;
4. nothing waiting, leased or running (a tool gap): refund(chg − att), it is *withdrawn*;
5. its next submission: charge(chg − att);
6. arrivals: chg = max(2, Ĉ), charge(chg);
7. expected to need r from now on, at a new stage: charge(att + r − chg) if that is above 0, and
   chg = att + r. Not in the paper. Expecting less changes nothing: F never falls by an estimate.

Rules 1 and 3 are *settling*: a mispredicted giant keeps its place for at most twice its charge and
what it has in flight. Without rule 3 a served clock starves: service that GPS gave an application
which never needed it would hold V back for everybody else. Rules 4 and 5 take the credit from
applications that wait for their tools.

Invariant: Σ over active of w·(F − V) = Σ over not withdrawn of (chg − att).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from justitia_ray.core.records import NUMBER, Record, checked, positive
from justitia_ray.core.virtual_clock import Session, VirtualClock
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, Seconds, VirtualTime

MINIMUM_CHARGE: KvTokenTime = 2
"""Least charge of an arrival: one token of output after one of prompt costs as much."""


@dataclass(slots=True)
class Account:
    """What an application was charged and what it has had."""

    weight: float
    sequence: int
    charged: KvTokenTime
    attained: KvTokenTime = 0
    withdrawn: bool = False
    settlements: int = 0
    """How often rule 1 doubled the charge."""


class FairShare(Protocol):
    """Accounts of all live applications, and the clock that they move."""

    clock: VirtualClock
    accounts: dict[ApplicationId, Account]

    def advance(self, now: Seconds) -> None:
        """Let time pass until `now`."""

    def set_rate(self, kv_tokens: int, now: Seconds) -> None:
        """Learn the KV memory of all replicas together, from `now` on."""

    def arrive(
        self,
        application_id: ApplicationId,
        cost: KvTokenTime,
        weight: float,
        sequence: int,
        tenant: str = "",
    ) -> None:
        """Open an account with a predicted cost."""

    def deliver(
        self, deliveries: Iterable[tuple[ApplicationId, KvTokenTime]]
    ) -> list[ApplicationId]:
        """Book one report's service; return the applications whose tag changed."""

    def withdraw(self, application_id: ApplicationId) -> None:
        """The application has nothing waiting, leased or running."""

    def resume(self, application_id: ApplicationId) -> bool:
        """The application submits; return whether its tag changed."""

    def expect(self, application_id: ApplicationId, remaining: KvTokenTime) -> bool:
        """The application is now expected to need so much more; return whether its tag changed."""

    def settle(self, application_id: ApplicationId) -> VirtualTime:
        """The application ended: close its account; return its final tag."""

    def reweigh(self, application_id: ApplicationId, weight: float) -> None:
        """Change the weight of an account."""

    def tag(self, application_id: ApplicationId) -> VirtualTime:
        """Return the virtual finish time F of an account."""

    def tag_in_tenant(self, application_id: ApplicationId) -> VirtualTime:
        """Return the tag that orders the applications of one tenant."""

    def take_rekeyed(self) -> list[ClientId]:
        """Return the tenants whose applications' tags changed since the last call."""

    def take_changed(self) -> list[ApplicationId]:
        """Return whose durable record changed since the last call, other than by its own verbs."""

    def sessions(self) -> dict[ApplicationId, Session]:
        """Return the GPS sessions of applications, also of ended ones that GPS still owes. O(N)."""

    def session_record(self, application_id: ApplicationId) -> Record | None:
        """Return what must outlive the scheduler of an application's session; None if nothing."""

    def prepare_restore(self, application_id: ApplicationId, record: Record) -> None:
        """Put back what this record says of more than its application; before `restore_session`.

        Raises:
            KeyError, TypeError, ValueError: If it is not of that form.
        """

    def restore_session(self, application_id: ApplicationId, record: Record, *, live: bool) -> None:
        """Put back what `session_record` returned; the account of a live one is the caller's.

        Raises:
            KeyError, TypeError, ValueError: If it is not of that form.
        """


class ServedShare:
    """Accounts under the clock that moves by delivered service."""

    def __init__(self, clock: VirtualClock | None = None) -> None:
        self.clock = clock if clock is not None else VirtualClock()
        self.accounts: dict[ApplicationId, Account] = {}

    def advance(self, now: Seconds) -> None:
        """Time alone changes nothing: only service moves V."""

    def set_rate(self, kv_tokens: int, now: Seconds) -> None:
        """The rate is whatever the replicas deliver."""

    def arrive(
        self,
        application_id: ApplicationId,
        cost: KvTokenTime,
        weight: float,
        sequence: int,
        tenant: str = "",
    ) -> None:
        """Charge max(2, Ĉ) (rule 6)."""
        charge = max(MINIMUM_CHARGE, cost)
        self.accounts[application_id] = Account(weight, sequence, charge)
        self.clock.charge(application_id, charge, weight, sequence)

    def deliver(
        self, deliveries: Iterable[tuple[ApplicationId, KvTokenTime]]
    ) -> list[ApplicationId]:
        """Book one report's service (rules 1 and 2); return the applications recharged."""
        total: KvTokenTime = 0
        recharged: list[ApplicationId] = []
        for application_id, amount in deliveries:
            account = self.accounts[application_id]
            account.attained += amount
            total += amount
            while account.attained > account.charged:
                self._charge(application_id, account, account.charged)
                account.charged *= 2
                account.settlements += 1
                recharged.append(application_id)
        self.clock.serve(total)
        return recharged

    def withdraw(self, application_id: ApplicationId) -> None:
        """Refund what is left of the charge while the application is away (rule 4)."""
        account = self.accounts[application_id]
        if not account.withdrawn:
            account.withdrawn = True
            self._refund(application_id, account.charged - account.attained)

    def resume(self, application_id: ApplicationId) -> bool:
        """Charge again what was refunded (rule 5); return whether it was."""
        account = self.accounts[application_id]
        if not account.withdrawn:
            return False
        account.withdrawn = False
        self._charge(application_id, account, account.charged - account.attained)
        return True

    def expect(self, application_id: ApplicationId, remaining: KvTokenTime) -> bool:
        """Charge what it needs beyond what it was charged (rule 7); return whether it is any.

        While it is withdrawn, that is charged with the rest when it submits (rule 5).
        """
        account = self.accounts[application_id]
        missing = account.attained + remaining - account.charged
        if missing <= 0:
            return False
        account.charged += missing
        if not account.withdrawn:
            self._charge(application_id, account, missing)
        return True

    def settle(self, application_id: ApplicationId) -> VirtualTime:
        """Refund what was charged and not attained (rule 3), and close the account."""
        self.withdraw(application_id)
        del self.accounts[application_id]
        return self._release(application_id)

    def reweigh(self, application_id: ApplicationId, weight: float) -> None:
        """Refund, take the new weight, charge."""
        account = self.accounts[application_id]
        was_withdrawn = account.withdrawn
        self.withdraw(application_id)
        account.weight = weight
        self._reweigh(application_id, weight)
        if not was_withdrawn:
            self.resume(application_id)

    def tag(self, application_id: ApplicationId) -> VirtualTime:
        """Return F; while withdrawn, what a submission now would make of it (rule 5)."""
        account = self.accounts[application_id]
        finish = self.clock.session(application_id).finish
        if not account.withdrawn:
            return finish
        owed = account.charged - account.attained
        return max(finish, self.clock.virtual_time) + owed / account.weight

    def tag_in_tenant(self, application_id: ApplicationId) -> VirtualTime:
        """Return F: tenants are nothing here."""
        return self.tag(application_id)

    def take_rekeyed(self) -> list[ClientId]:
        """Nobody: what changes one tag changes no other."""
        return []

    def take_changed(self) -> list[ApplicationId]:
        """Return the ended applications that GPS is done with."""
        return self.clock.take_forgotten()

    def sessions(self) -> dict[ApplicationId, Session]:
        """Return the sessions of the clock."""
        return self.clock.sessions()

    def session_record(self, application_id: ApplicationId) -> Record | None:
        """Return the tag, the weight and the arrival sequence."""
        if application_id not in self.clock:
            return None
        session = self.clock.session(application_id)
        return {"finish": session.finish, "weight": session.weight, "sequence": session.sequence}

    def prepare_restore(self, application_id: ApplicationId, record: Record) -> None:
        """Nothing: sessions share nothing but V."""

    def restore_session(self, application_id: ApplicationId, record: Record, *, live: bool) -> None:
        """Put back a session; that of an ended application goes when GPS is done with it."""
        self.clock.restore_session(
            application_id,
            checked(record, "finish", NUMBER),
            positive(record, "weight"),
            checked(record, "sequence", (int,)),
            released=not live,
        )

    def _charge(self, application_id: ApplicationId, account: Account, amount: KvTokenTime) -> None:
        self.clock.charge(application_id, amount, account.weight, account.sequence)

    def _refund(self, application_id: ApplicationId, amount: KvTokenTime) -> None:
        self.clock.refund(application_id, amount)

    def _reweigh(self, application_id: ApplicationId, weight: float) -> None:
        reweigh_session(self.clock, application_id, weight)

    def _release(self, application_id: ApplicationId) -> VirtualTime:
        """Let go of what belongs to an application that has ended; return its final tag."""
        final = self.clock.session(application_id).finish
        self.clock.release(application_id)
        return final


def reweigh_session(clock: VirtualClock, session_id: str, weight: float) -> None:
    """Change the weight of a session; what GPS still owes it is owed at the new weight."""
    owed = clock.owed(session_id)
    if owed:
        clock.refund(session_id, owed)
    clock.reweigh(session_id, weight)
    if owed:
        clock.charge(session_id, owed, weight, clock.session(session_id).sequence)
