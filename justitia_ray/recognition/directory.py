"""The directory of names: which application a session or a conversation belongs to.

One for all ingresses of an application, in its scheduler: whichever ingress a call comes to, the
answer is the same. It is bounded, and not stored: a new scheduler is told by each ingress what that
named lately.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from justitia_ray.recognition.conversations import Name

MOST_NAMES = 100_000
"""Names that are kept: some 30 MB."""
DEEPEST = 32
"""Generations of sub-agents that belong to their root. One below is a root of its own: an agent
that spawns itself for ever does not take its place in the order for ever."""


class Entry(NamedTuple):
    """The application that a name stands for."""

    application_id: str
    """Empty: two applications have the name, and so it is nobody's."""
    depth: int = 0
    """Generations from the root."""


class Directory:
    """Names of sessions and of conversations, bounded.

    Where it is full, whoever has most names loses some: those that were not asked for longest. So
    a tenant that names ever more loses its own. Every verb is O(1) for a name, amortised; ingresses
    call the verbs over their connections by these names.
    """

    def __init__(self, most: int = MOST_NAMES) -> None:
        """Begin empty.

        Args:
            most: Maximum names of all tenants.
        """
        self._most = most
        self._of_tenants: dict[str, OrderedDict[Name, Entry]] = {}
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def find_conversation(self, tenant: str, names: Iterable[Name]) -> str | None:
        """Return the application of the first known of these names.

        Empty: it is nobody's. None: none of them is known.
        """
        for name in names:
            entry = self._look(tenant, name)
            if entry is not None:
                return entry.application_id
        return None

    def name_conversation(self, tenant: str, names: Iterable[Name], application_id: str) -> None:
        """Let names stand for an application; one that stands for another is nobody's then."""
        for name in names:
            entry = self._look(tenant, name)
            if entry is None:
                self._keep(tenant, name, Entry(application_id))
            elif entry.application_id != application_id:
                self._keep(tenant, name, Entry(""))

    def claim_session(
        self,
        tenant: str,
        session: Name,
        own: str,
        parent: Name | None = None,
        parents: str | None = None,
    ) -> str:
        """Return the application of a session: that of its root, as it was first heard of.

        A session belongs where it was put first, whatever parent it names later. Its parent belongs
        there too: one that has not called yet is a root, and stays one. So there are no cycles.

        Args:
            tenant: Whose names these are.
            session: The session's name.
            own: The application that it would be a root with.
            parent: Name of the session that spawned it, if one did.
            parents: The application that the parent would be a root with.
        """
        entry = self._look(tenant, session)
        if entry is not None:
            return entry.application_id
        entry = Entry(own)
        if parent is not None and parents is not None and parent != session:
            above = self._look(tenant, parent)
            if above is None:
                above = Entry(parents)
                self._keep(tenant, parent, above)
            if above.depth < DEEPEST:
                entry = Entry(above.application_id, above.depth + 1)
        self._keep(tenant, session, entry)
        return entry.application_id

    def restore_names(self, tenant: str, names: Iterable[tuple[Name, str]]) -> None:
        """Put back names of an earlier directory; what is known here stays."""
        for name, application_id in names:
            if self._look(tenant, name) is None:
                self._keep(tenant, name, Entry(application_id))

    def _look(self, tenant: str, name: Name) -> Entry | None:
        names = self._of_tenants.get(tenant)
        entry = None if names is None else names.get(name)
        if names is not None and entry is not None:
            names.move_to_end(name)
        return entry

    def _keep(self, tenant: str, name: Name, entry: Entry) -> None:
        names = self._of_tenants.setdefault(tenant, OrderedDict())
        self._total += name not in names
        names[name] = entry
        names.move_to_end(name)
        if self._total > self._most:
            self._drop_some()

    def _drop_some(self) -> None:
        """Drop a hundredth of the names of whoever has most."""
        tenant = max(self._of_tenants, key=lambda one: len(self._of_tenants[one]))
        names = self._of_tenants[tenant]
        for _ in range(max(1, len(names) // 100)):
            names.popitem(last=False)
            self._total -= 1
        if not names:
            del self._of_tenants[tenant]
