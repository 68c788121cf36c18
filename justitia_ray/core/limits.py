"""How much a scheduler takes, and how much of it one tenant.

A tenant may have at most four times what is left free: alone, four fifths of a limit. Whoever holds
on to all that it can get so leaves room to those who come later, k such tenants 1/(4k + 1) of the
limit, and nobody has to say how many tenants there are. This is the dynamic threshold by which
switches share the memory of their ports (Choudhury and Hahne 1998); fixed shares would leave most
of the room unused.
"""

from dataclasses import dataclass

_TIMES_THE_REST = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a scheduler takes; None is no limit."""

    waiting_inferences: int | None = None
    """Those that run count too."""
    open_applications: int | None = None
    """Until they have ended, so idle ones count."""


class Census:
    """How many of one kind there are, and of each tenant."""

    def __init__(self, most: int | None = None) -> None:
        """Start with none.

        Args:
            most: How many there may be in all; None is no limit.
        """
        self.most = most
        self.total = 0
        self._of_tenant: dict[str, int] = {}

    def of(self, tenant: str) -> int:
        """Return how many a tenant has."""
        return self._of_tenant.get(tenant, 0)

    def has_room(self, tenant: str) -> bool:
        """Return whether there may be one more of this tenant."""
        if self.most is None:
            return True
        return self.total < self.most and self.of(tenant) < _TIMES_THE_REST * (
            self.most - self.total
        )

    def add(self, tenant: str) -> None:
        """There is one more; also where there is no room, of what was there before."""
        self.total += 1
        self._of_tenant[tenant] = self.of(tenant) + 1

    def remove(self, tenant: str) -> None:
        """There is one less.

        Raises:
            KeyError: If the tenant has none.
        """
        left = self._of_tenant[tenant] - 1
        self.total -= 1
        if left:
            self._of_tenant[tenant] = left
        else:
            del self._of_tenant[tenant]
