"""The accounts that lags are measured with: the scheduler's own, or a shadow of them.

The shadow is a `ServedShare` fed with this run's service and the true costs, or with the
predictions, settled, where the truth is not known. The accounts of the scheduler are that already,
unless they run on another clock, in another cost, between tenants, or on predictions where the
truth is known; from then on the shadow has accounts of its own, until nothing is live.
"""

from collections.abc import Sequence
from dataclasses import replace

from justitia_ray.core.entities import Application
from justitia_ray.core.fair_share import FairShare, ServedShare
from justitia_ray.core.policies import PolicyOptions
from justitia_ray.core.state import State
from justitia_ray.core.virtual_clock import VirtualClock
from justitia_ray.units import ApplicationId, KvTokenTime, VirtualTime


class LagAccounts:
    """Told what happens to the scheduler's accounts; a shadow follows, else nothing is to do."""

    def __init__(self, state: State, own: FairShare, options: PolicyOptions) -> None:
        """Begin with the scheduler's own, if they are what a shadow would be."""
        self._state = state
        self._own = own
        self._could_be_own = _are_shadow(options)
        self._shadow: ServedShare | None = None if self._could_be_own else ServedShare()

    @property
    def are_own(self) -> bool:
        """Whether they are the scheduler's."""
        return self._shadow is None

    @property
    def share(self) -> ServedShare:
        """The accounts as they are; one of an earlier time may be missing."""
        share = self._own if self._shadow is None else self._shadow
        assert isinstance(share, ServedShare)
        return share

    @property
    def clock(self) -> VirtualClock:
        """Their clock."""
        return self.share.clock

    def follow(self, own: FairShare, options: PolicyOptions) -> None:
        """Take in the scheduler's accounts that are in force from now on."""
        self._could_be_own = _are_shadow(options)
        if self._shadow is None and not self._could_be_own:
            self._shadow = self.share
        self._own = own

    def rejoin(self) -> bool:
        """Drop the shadow if it need not go on, once nothing is live; return whether it was."""
        if self._shadow is None or not self._could_be_own:
            return False
        self._shadow = None
        return True

    def arrive(self, application: Application) -> None:
        """An application is about to be charged."""
        cost = _cost(application)
        if self._shadow is None and cost != application.predicted_kv_token_time:
            self._shadow = _copy(self.share)
        if self._shadow is not None:
            self._shadow.arrive(
                application.application_id, cost, application.weight, application.sequence
            )

    def withdraw(self, application_id: ApplicationId) -> None:
        """It was withdrawn (rule 4)."""
        if self._shadow is not None:
            self._with(application_id).withdraw(application_id)

    def resume(self, application_id: ApplicationId) -> None:
        """It submits (rule 5)."""
        if self._shadow is not None:
            self._with(application_id).resume(application_id)

    def reweigh(self, application_id: ApplicationId, weight: float) -> None:
        """Its weight was changed."""
        if self._shadow is not None:
            self._with(application_id).reweigh(application_id, weight)

    def settle(self, application_id: ApplicationId, final_tag: VirtualTime) -> VirtualTime:
        """It was settled; return its final tag, which is `final_tag` in the scheduler's own."""
        if self._shadow is None:
            return final_tag
        return self._with(application_id).settle(application_id)

    def deliver(self, charges: Sequence[tuple[ApplicationId, KvTokenTime]]) -> None:
        """One report's service was booked."""
        if self._shadow is not None:
            for application_id, _ in charges:
                self._with(application_id)
            self._shadow.deliver(charges)

    def forget_ended(self) -> None:
        """Nobody asks for the ended applications that GPS is done with."""
        if self._shadow is not None:
            self._shadow.clock.take_forgotten()

    def tag(self, application_id: ApplicationId) -> VirtualTime:
        """Return F of a live application.

        Raises:
            KeyError: If no such application is live.
        """
        return self._with(application_id).tag(application_id)

    def _with(self, application_id: ApplicationId) -> ServedShare:
        """Return the accounts, with one of this application: also if it is of an earlier time."""
        share = self.share
        if application_id not in share.accounts:
            application = self._state.applications[application_id]
            had = application.kv_token_time
            rest = max(0, _cost(application) - had)
            share.arrive(application_id, rest, application.weight, application.sequence)
            account = share.accounts[application_id]
            account.attained = had
            account.charged += had
        return share


def _are_shadow(options: PolicyOptions) -> bool:
    """Return whether the scheduler's accounts are what the shadow would be."""
    return (options.clock, options.fairness, options.accounts_cost) == (
        "served",
        "application",
        "kv_token_time",
    )


def _cost(application: Application) -> KvTokenTime:
    if application.true_kv_token_time is not None:
        return application.true_kv_token_time
    return application.predicted_kv_token_time


def _copy(share: ServedShare) -> ServedShare:
    """Return accounts that go on like these, apart from them."""
    copy = ServedShare(VirtualClock(share.clock.virtual_time))
    for name, session in share.clock.sessions().items():
        copy.clock.restore_session(
            name, session.finish, session.weight, session.sequence, released=session.released
        )
    copy.accounts = {name: replace(account) for name, account in share.accounts.items()}
    return copy
