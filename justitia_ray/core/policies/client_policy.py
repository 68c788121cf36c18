"""What the policies that compare clients have in common: the unit, and what outlives a scheduler.

A client is an application, or a tenant with all its applications (option `unit`). What is known of
an application goes with it; what is known of a tenant is kept.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from justitia_ray.core.entities import Application
from justitia_ray.core.policies.base import Policy
from justitia_ray.core.policies.options import UNIT, Option
from justitia_ray.core.records import checked_mapping
from justitia_ray.units import ApplicationId, ClientId

Checked = TypeVar("Checked")


class ClientPolicy(Policy):
    """A policy that counts by client. Subclasses say what they count, and when to forget it."""

    OPTIONS: ClassVar[tuple[Option, ...]] = (UNIT,)

    def client(self, application: Application) -> ClientId:
        """Return the application or its tenant."""
        if self.options.own["unit"] == "tenant":
            return application.tenant
        return application.application_id

    def application_ended(self, application: Application) -> None:
        """Forget the application, and the client if that is the same."""
        self.forget_application(application.application_id)
        if self.options.own["unit"] == "application":
            self.forget_client(application.application_id)

    @abstractmethod
    def forget_client(self, client: ClientId) -> None:
        """Forget a client that will not come back; it may be unknown."""

    @abstractmethod
    def forget_application(self, application_id: ApplicationId) -> None:
        """Forget the inferences of an application, of which there are none any more."""

    @abstractmethod
    def counted(self) -> dict[str, Any]:
        """Return what has been counted, as JSON."""

    @abstractmethod
    def take_over(self, counted: Mapping[str, Any]) -> None:
        """Take over what `counted` returned.

        Raises:
            KeyError, TypeError, ValueError: If it is not of that form.
        """

    def state(self) -> dict[str, Any]:
        """Return what has been counted, and the options that it was counted under."""
        return {"options": self._counted_under(), "counted": self.counted()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what was counted under these same options; anything else is forgotten.

        Numbers of applications say nothing of tenants, nor those of one cost of another.

        Raises:
            KeyError, TypeError, ValueError: If it is not of the form of `state`.
        """
        counted = state["counted"]
        if state["options"] == self._counted_under():
            self.take_over(counted)

    def _counted_under(self) -> dict[str, Any]:
        return {"cost": self.options.cost, **self.options.own}


def checked_table(value: object, check: Callable[[Any], Checked]) -> dict[str, Checked]:
    """Return a table of a stored record, every entry of it checked.

    Raises:
        KeyError, TypeError, ValueError: If it is none, or an entry is not as it should be.
    """
    return {name: check(entry) for name, entry in checked_mapping(value).items()}
