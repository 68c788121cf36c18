"""Directory of names: maps sessions and conversations to applications.

All ingresses of a Serve application share the directory of its first model's scheduler, so that
every ingress finds the same application. The directory is bounded and not stored: each ingress
sends its recent names to a new scheduler.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from justitia_ray.recognition.conversations import Name

MOST_NAMES = 100_000
"""Maximum number of names of sessions and conversations, which take some 30 MB."""
DEEPEST = 32
"""Generations of sub-agents that belong to their root's application. A deeper session gets an
application of its own, so that an agent that spawns itself for ever does not keep its early
position in the order for ever.
"""


class Entry(NamedTuple):
    """The application that a name of a session or conversation identifies."""

    application_id: str
    """Id of the application; "" if two applications have the name, which then identifies neither.
    """
    depth: int = 0
    """Number of generations between the session and its root."""


class Directory:
    """Bounded directory from names of sessions and conversations to applications.

    When it is full, the tenant with the most names loses its least recently used ones, so that a
    tenant that adds ever more names loses its own. Every method is O(1) per name, amortised;
    ingresses call the methods by name over their connections.
    """

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._of_tenants: dict[str, OrderedDict[Name, Entry]] = {}
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def find_conversation(self, tenant: str, names: Iterable[Name]) -> str | None:
        """Return the application of the first of these names that is known.

        The result is "" if the name is ambiguous, and None if no name is known.
        """
        for name in names:
            entry = self._find(tenant, name)
            if entry is not None:
                return entry.application_id
        return None

    def name_conversation(self, tenant: str, names: Iterable[Name], application_id: str) -> None:
        """Assign names to an application; a name of two applications becomes ambiguous."""
        for name in names:
            entry = self._find(tenant, name)
            if entry is None:
                self._store(tenant, name, Entry(application_id))
            elif entry.application_id != application_id:
                self._store(tenant, name, Entry(""))

    def claim_session(
        self,
        tenant: str,
        session: Name,
        own: str,
        parent: Name | None = None,
        parents: str | None = None,
    ) -> str:
        """Return the application of a session, which is that of its root session.

        A session keeps its first application, even if it names another parent later. An unknown
        parent is registered as a root, and stays a root. So there are no cycles.

        Args:
            tenant: Tenant of the names.
            session: Name of the session.
            own: Application of the session if it is a root.
            parent: Name of the session that spawned it; None if it names none.
            parents: Application of the parent if that is a root.
        """
        entry = self._find(tenant, session)
        if entry is not None:
            return entry.application_id
        entry = Entry(own)
        if parent is not None and parents is not None and parent != session:
            above = self._find(tenant, parent)
            if above is None:
                above = Entry(parents)
                self._store(tenant, parent, above)
            if above.depth < DEEPEST:
                entry = Entry(above.application_id, above.depth + 1)
        self._store(tenant, session, entry)
        return entry.application_id

    def restore_names(self, tenant: str, names: Iterable[tuple[Name, str]]) -> None:
        """Add names of an earlier directory; names that are known already keep their entry."""
        for name, application_id in names:
            if self._find(tenant, name) is None:
                self._store(tenant, name, Entry(application_id))

    def _find(self, tenant: str, name: Name) -> Entry | None:
        names = self._of_tenants.get(tenant)
        entry = None if names is None else names.get(name)
        if names is not None and entry is not None:
            names.move_to_end(name)
        return entry

    def _store(self, tenant: str, name: Name, entry: Entry) -> None:
        names = self._of_tenants.setdefault(tenant, OrderedDict())
        self._total += name not in names
        names[name] = entry
        names.move_to_end(name)
        if self._total > self._most:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drop the least recently used hundredth of the names of the tenant with the most names."""
        tenant = max(self._of_tenants, key=lambda one: len(self._of_tenants[one]))
        names = self._of_tenants[tenant]
        for _ in range(max(1, len(names) // 100)):
            names.popitem(last=False)
            self._total -= 1
        if not names:
            del self._of_tenants[tenant]
