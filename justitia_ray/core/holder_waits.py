"""Waiting of inferences for the replica that holds their context, if it is full for a short time.

The first inference in order may wait for that replica, the *holder*, although it could start on
another replica, the *alternative*, and compute its whole prompt there. It waits while the delay
that this saves exceeds the expected wait. The delay is the time of computing prompt tokens, summed
over the inferences that have to wait for them. Meanwhile inferences behind the first may start on
other replicas. They overtake it, within three limits:

- The wait ends after the time saved, counted from its begin, and an inference never waits again.
- The alternative keeps memory and seats for it, so that it starts there when the wait ends.
- It waits only while V has not reached its tag, where the order promises anything by tags: it then
  starts before GPS would have finished it, within every promise that was given.
"""

from dataclasses import dataclass

from justitia_ray.core.entities import Application, HolderWait, Inference, KnownReplica
from justitia_ray.core.ledger import Ledger
from justitia_ray.core.locality import delay, missing_tokens
from justitia_ray.core.placement import Placement
from justitia_ray.core.state import DeadlineKind, State
from justitia_ray.units import Seconds


@dataclass(frozen=True, slots=True)
class Choice:
    """Full replica with an application's context, for whose memory it is worth waiting."""

    holder: KnownReplica
    saved_s: Seconds
    """Delay in seconds that starting on this replica saves, compared with another replica."""
    lasts_s: Seconds
    """Expected seconds until this replica has memory."""


class HolderWaits:
    """Decides which inferences wait for the replica that has their context in its cache."""

    def __init__(self, state: State, ledger: Ledger, placement: Placement) -> None:
        self._state = state
        self._ledger = ledger
        self._placement = placement

    def holder(
        self, application: Application, inference: Inference, alternative: KnownReplica
    ) -> KnownReplica | None:
        """Return the replica for which an inference waits; None: it starts on `alternative` now.

        Called at each dispatch in which the inference could start only on replicas other than its
        holder.

        Args:
            application: The application of the inference.
            inference: An inference before which no other inference waits for another reason.
            alternative: The best replica on which the inference could start now.
        """
        wait, now = inference.holder_wait, self._state.now
        if wait is not None and now >= wait.until:
            return None
        choice = None
        if self._breaks_no_guarantee(application):
            choice = self._choose_holder(application, inference, alternative)
        until = None if choice is None else now + choice.saved_s
        if wait is not None and until is not None:
            until = min(until, wait.until)
        if choice is None or until is None or now + choice.lasts_s >= until:
            if wait is not None:
                wait.until = now
            return None
        if wait is None:
            wait = inference.holder_wait = HolderWait(choice.holder.replica_id, now, until)
            self._state.deadlines.set(until, DeadlineKind.HOLDER, inference.request_id)
        wait.replica_id, wait.full_until = choice.holder.replica_id, now + choice.lasts_s
        return choice.holder

    def _choose_holder(
        self, application: Application, inference: Inference, alternative: KnownReplica
    ) -> Choice | None:
        """Return the replica with most of the context, if waiting for it saves time."""
        times = self._state.engine_times
        if times.token_s is None:
            return None
        least, holder = missing_tokens(alternative, application, inference), None
        for name in application.replicas:
            replica = self._state.replicas.get(name)
            if replica is None or not replica.takes_leases:
                continue
            missing = missing_tokens(replica, application, inference)
            if missing < least and self._placement.can_hold(replica, inference):
                least, holder = missing, replica
        if holder is None:
            return None
        if holder.replica_id in self._state.asking and self._placement.fits(holder, inference):
            return None  # the replica lacks a seat, not KV memory
        more = delay(alternative, application, inference) - delay(holder, application, inference)
        full_for_s = self._full_for_s(holder, inference, times.iteration_s)
        return Choice(holder, times.token_s * more, full_for_s)

    def _full_for_s(
        self, replica: KnownReplica, inference: Inference, iteration_s: Seconds
    ) -> Seconds:
        """Return the expected seconds until a replica has memory for an inference.

        Other inferences are assumed not to start there.

        0 if the replica has the memory but has not pulled yet.
        """
        placement, kv_tokens = self._placement, replica.leasable_tokens
        if placement.fits(replica, inference):
            return 0.0
        forecast = replica.leases.forecast(replica.capacity.block_size)
        iterations = placement.admission.start(replica, inference, forecast, kv_tokens)
        age_s = self._state.now - replica.last_seen_at
        return max(0.0, iterations * iteration_s - age_s)

    def _breaks_no_guarantee(self, application: Application) -> bool:
        """Return whether waiting breaks no guarantee: V has not reached the application's tag.

        Policies that let applications overtake depend on the order of starts; under these policies
        no inference waits.
        """
        ledger = self._ledger
        if ledger.policy.lets_pass:
            return False
        if not (ledger.policy.BY_TAG and ledger.follows_service) or application.is_deprioritised:
            return True
        share = ledger.fair_share
        return share.clock.virtual_time < share.tag(application.application_id)
