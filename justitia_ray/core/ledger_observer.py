"""Events of the ledger for an observer, which follows the accounts and does not influence them.

The lag meter is the only observer (`lag.meter`); without it the ledger has none.
"""

from collections.abc import Sequence
from typing import Protocol

from justitia_ray.core.actions import Lag
from justitia_ray.core.clock.fair_share import ServedShare
from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies import Delivery, Order
from justitia_ray.units import ApplicationId, VirtualTime


class LedgerObserver(Protocol):
    """Interface through which observers receive the events of a ledger, in order.

    It has more than eight methods because it has one for each method of the ledger.
    """

    def policy_changed(self, fair_share: ServedShare, policy: Order) -> None:
        """Receive the accounts and the policy in use from now on; also called at the start."""

    def arriving(self, application: Application) -> None:
        """Receive an application before its arrival is charged (rule 6)."""

    def losing_credit(self, application_id: ApplicationId) -> None:
        """Receive an application before its unserved charge is refunded.

        This happens when it is withdrawn, reweighed or settled.
        """

    def withdrawn(self, application_id: ApplicationId) -> None:
        """Receive an idle application after its refund by rule 4."""

    def resumed(self, application_id: ApplicationId, *, was_withdrawn: bool) -> None:
        """Receive an application that submits again, after a charge by rule 5."""

    def raised(self, application_id: ApplicationId) -> None:
        """Receive an application after its charge was raised (rule 7)."""

    def reweighed(self, application_id: ApplicationId, weight: float) -> None:
        """Receive an application after its weight has changed."""

    def settled(self, application_id: ApplicationId, final_tag: VirtualTime) -> Lag | None:
        """Receive an application after its account was closed (rule 3).

        Return the lag to report for the application.
        """

    def enqueuing(self, application: Application, inference: Inference) -> None:
        """Receive an inference before it joins the queue, for the first time or again."""

    def readmitting(self, application_id: ApplicationId) -> None:
        """Receive an application before its suspended inferences join the queue."""

    def dispatched(
        self, application: Application, inference: Inference, *, passing: bool, nothing_waits: bool
    ) -> None:
        """Receive an inference after it was leased.

        Args:
            application: The application.
            inference: Its leased inference.
            passing: Whether the inference overtook a waiting inference.
            nothing_waits: Whether no other inference waits.
        """

    def adopted(self, inference: Inference) -> None:
        """Receive an inference that has a lease of an earlier scheduler."""

    def leave_flight(self, inference: Inference) -> None:
        """Receive an inference that has ended or is suspended, and is out of the queue."""

    def served(self, deliveries: Sequence[Delivery], recharged: Sequence[ApplicationId]) -> None:
        """Receive a report's service, and the applications whose charges it doubled."""
