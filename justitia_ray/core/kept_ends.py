"""Kept ends: what is counted, until its ingress knows that it is stored.

An ingress keeps each end that it sees until the scheduler says that the end is stored
(`EndsStored`), and submits what it still keeps to the next scheduler, which may have inherited the
count or not. Therefore the record of an application names the ends that are counted with it, and
stays for as long as an ingress may bring one of them, also when the application is over.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from justitia_ray.core.actions import EndsStored
from justitia_ray.core.records import Record, RecordReader
from justitia_ray.units import ApplicationId, IngressId, KvTokenTime, RequestId

_MOST = 100_000
"""Kept ends; the oldest go first. They pile up only while the store is away, and ingresses give
theirs up after a minute."""

_Key = tuple[IngressId, ApplicationId, RequestId | None]
"""An end and the ingress that keeps it; of the application itself, if no inference is named."""


@dataclass(slots=True)
class _Ends:
    """Kept ends of one application."""

    inferences: dict[RequestId, IngressId] = field(default_factory=dict)
    openers: dict[IngressId, None] = field(default_factory=dict)
    """Ingresses that may open the application again, not knowing that it is over."""
    unfinished: KvTokenTime = 0
    """Service that was booked for inferences of the application that is over which have not ended:
    its ingresses did not speak for them."""


class KeptEnds:
    """Ends of inferences and applications that ingresses keep. O(1) an end."""

    def __init__(self) -> None:
        self._of: dict[ApplicationId, _Ends] = {}
        self._application_of: dict[RequestId, ApplicationId] = {}
        self._kept: dict[_Key, None] = {}
        """All, oldest first."""
        self._new: dict[_Key, None] = {}
        self._taken: dict[_Key, None] = {}
        """Ends that were taken to be saved, and are not known to be."""
        self._changed: dict[ApplicationId, None] = {}
        self._inherited: set[ApplicationId] = set()

    def __len__(self) -> int:
        """Return the number of kept ends."""
        return len(self._kept)

    def add_inference(
        self, application_id: ApplicationId, request_id: RequestId, ingress_id: IngressId
    ) -> None:
        """Note an inference that is counted as ended."""
        self._ends(application_id).inferences[request_id] = ingress_id
        self._application_of[request_id] = application_id
        self._add((ingress_id, application_id, request_id))

    def add_application(
        self,
        application_id: ApplicationId,
        openers: Iterable[IngressId],
        unfinished: KvTokenTime = 0,
    ) -> None:
        """Note an application that is over, for each ingress that has it open.

        Args:
            application_id: The application.
            openers: These ingresses.
            unfinished: Service booked for inferences of it that have not ended here.
        """
        for ingress_id in openers:
            ends = self._ends(application_id)
            ends.openers[ingress_id] = None
            ends.unfinished = unfinished
            self._add((ingress_id, application_id, None))

    def is_counted(self, application_id: ApplicationId, request_id: RequestId) -> bool:
        """Return whether the end of an inference is counted, as far as that is kept."""
        ends = self._of.get(application_id)
        return ends is not None and request_id in ends.inferences

    def is_inherited(self, application_id: ApplicationId) -> bool:
        """Return whether an application is over, and was under an earlier scheduler."""
        return application_id in self._inherited

    def reopen(self, application_id: ApplicationId) -> tuple[list[IngressId], KvTokenTime]:
        """Note that an application is live again.

        Return the ingresses that may open it, too, and the service that was booked for inferences
        which had not ended.
        """
        ends = self._of.get(application_id, _Ends())
        openers, unfinished = list(ends.openers), ends.unfinished
        for ingress_id in openers:
            self._drop((ingress_id, application_id, None))
        return openers, unfinished

    # --- saving

    def take_changed(self) -> list[ApplicationId]:
        """Return the applications whose kept ends changed since the last call: they are saved."""
        self._taken |= self._new
        self._new = {}
        changed, self._changed = list(self._changed), {}
        return changed

    def take_stored(self) -> list[EndsStored]:
        """Return the ends that are stored, as what was taken last is, by the ingresses to tell."""
        told: dict[IngressId, tuple[list[RequestId], list[ApplicationId]]] = {}
        for ingress_id, application_id, request_id in self._taken:
            request_ids, application_ids = told.setdefault(ingress_id, ([], []))
            if request_id is None:
                application_ids.append(application_id)
            else:
                request_ids.append(request_id)
        self._taken = {}
        return [EndsStored(name, tuple(of[0]), tuple(of[1])) for name, of in told.items()]

    def acknowledge(self, told: EndsStored) -> None:
        """Forget ends of which their ingress knows now that they are stored."""
        for request_id in told.request_ids:
            application_id = self._application_of.get(request_id)
            if application_id is not None:
                self._drop((told.ingress_id, application_id, request_id))
        for application_id in told.application_ids:
            self._drop((told.ingress_id, application_id, None))

    def forget_ingress(self, ingress_id: IngressId) -> None:
        """Forget what an ingress keeps that is lost. O(n)."""
        for key in [key for key in self._kept if key[0] == ingress_id]:
            self._drop(key)

    def names(self) -> Iterator[ApplicationId]:
        """Yield the applications of which ends are kept."""
        return iter(self._of)

    def record(self, application_id: ApplicationId) -> Record | None:
        """Return the kept ends of an application as JSON has them; None if there are none."""
        ends = self._of.get(application_id)
        if ends is None:
            return None
        return {
            "inferences": {**ends.inferences},
            "openers": [*ends.openers],
            "unfinished": ends.unfinished,
        }

    def restore(self, application_id: ApplicationId, record: object) -> set[IngressId]:
        """Put recorded ends back, which are to be told; return their ingresses.

        Raises:
            ValueError: If a field is missing or holds something else than it should.
        """
        reader = RecordReader(record, ("inferences", "openers", "unfinished"), None)
        inferences = reader.table("inferences", RecordReader.text)
        openers = [str(name) for name in reader.items("openers")]
        for request_id, ingress_id in inferences.items():
            self.add_inference(application_id, request_id, ingress_id)
        self.add_application(application_id, openers, reader.not_negative("unfinished"))
        if openers:
            self._inherited.add(application_id)
        return {*inferences.values(), *openers}

    # --- inside

    def _ends(self, application_id: ApplicationId) -> _Ends:
        return self._of.setdefault(application_id, _Ends())

    def _add(self, key: _Key) -> None:
        self._kept[key] = self._new[key] = None
        self._changed[key[1]] = None
        if len(self._kept) > _MOST:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: _Key) -> None:
        if key not in self._kept:
            return
        ingress_id, application_id, request_id = key
        for keys in (self._kept, self._new, self._taken):
            keys.pop(key, None)
        ends = self._of[application_id]
        if request_id is None:
            del ends.openers[ingress_id]
            if not ends.openers:
                ends.unfinished = 0
                self._inherited.discard(application_id)
        else:
            del ends.inferences[request_id], self._application_of[request_id]
        if not (ends.inferences or ends.openers):
            del self._of[application_id]
        self._changed[application_id] = None
