"""Records of counted ended inferences, kept until their ingresses confirm that they are stored.

Such a record is an *end*, of an inference or of a whole application. An ingress keeps each end
until the scheduler sends `EndsStored` for it, and submits those that it still keeps to the next
scheduler, whose restored counts may or may not include them. So the stored record of an application
lists the ends that its counts include. It is kept as long as an ingress may submit one of these
ends, even after the application has ended.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from justitia_ray.core.actions import EndsStored
from justitia_ray.core.records import Record, RecordReader
from justitia_ray.units import ApplicationId, IngressId, KvTokenTime, RequestId

_MOST = 100_000
"""Maximum number of records of ended inferences; the oldest are dropped first. Records accumulate
only while the store is unavailable, and ingresses drop their copies after a minute.
"""

_Key = tuple[IngressId, ApplicationId, RequestId | None]
"""Ingress, application and inference of a record; the inference is None if the application has
ended.
"""


@dataclass(slots=True)
class _ApplicationEnds:
    """Records of one application and its ended inferences."""

    inferences: dict[RequestId, IngressId] = field(default_factory=dict)
    openers: dict[IngressId, None] = field(default_factory=dict)
    """Ingresses that may open the application again, because its end was not confirmed to them."""
    unfinished: KvTokenTime = 0
    """Service of the inferences of other ingresses that were unfinished when the application ended.
    """


class KeptEnds:
    """Records of ended inferences and applications, until they are stored. O(1) each."""

    def __init__(self) -> None:
        self._of: dict[ApplicationId, _ApplicationEnds] = {}
        self._application_of: dict[RequestId, ApplicationId] = {}
        self._kept: dict[_Key, None] = {}
        """Records of ended inferences and applications, oldest first."""
        self._new: dict[_Key, None] = {}
        self._taken: dict[_Key, None] = {}
        """Records that are being saved, without a confirmation so far."""
        self._changed: dict[ApplicationId, None] = {}
        self._inherited: set[ApplicationId] = set()

    def __len__(self) -> int:
        return len(self._kept)

    def add_inference(
        self, application_id: ApplicationId, request_id: RequestId, ingress_id: IngressId
    ) -> None:
        """Record an ended inference that has been counted."""
        self._ends_of_application(application_id).inferences[request_id] = ingress_id
        self._application_of[request_id] = application_id
        self._keep_ended_inference((ingress_id, application_id, request_id))

    def add_application(
        self,
        application_id: ApplicationId,
        openers: Iterable[IngressId],
        unfinished: KvTokenTime = 0,
    ) -> None:
        """Record an ended application for each ingress that has the application open.

        Args:
            application_id: The application.
            openers: The ingresses that have the application open.
            unfinished: Service booked for its inferences that have not ended in this scheduler.
        """
        for ingress_id in openers:
            ends = self._ends_of_application(application_id)
            ends.openers[ingress_id] = None
            ends.unfinished = unfinished
            self._keep_ended_inference((ingress_id, application_id, None))

    def is_counted(self, application_id: ApplicationId, request_id: RequestId) -> bool:
        """Return whether an ended inference is known to be counted."""
        ends = self._of.get(application_id)
        return ends is not None and request_id in ends.inferences

    def ended_under_predecessor(self, application_id: ApplicationId) -> bool:
        """Return whether an application ended under an earlier scheduler."""
        return application_id in self._inherited

    def reopen(self, application_id: ApplicationId) -> tuple[list[IngressId], KvTokenTime]:
        """Count an ended application as live again, because an ingress opens it.

        Return the ingresses that may also open it, and the service booked for its unfinished
        inferences.
        """
        ends = self._of.get(application_id, _ApplicationEnds())
        openers, unfinished = list(ends.openers), ends.unfinished
        for ingress_id in openers:
            self._drop_ended_inference((ingress_id, application_id, None))
        return openers, unfinished

    # --- durable state

    def take_changed(self) -> list[ApplicationId]:
        """Return the applications whose records have changed since the last call, to be saved."""
        self._taken |= self._new
        self._new = {}
        changed, self._changed = list(self._changed), {}
        return changed

    def take_stored(self) -> list[EndsStored]:
        """Return the records that the last save has stored, by the ingress to notify."""
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
        """Drop the records that their ingress has confirmed."""
        for request_id in told.request_ids:
            application_id = self._application_of.get(request_id)
            if application_id is not None:
                self._drop_ended_inference((told.ingress_id, application_id, request_id))
        for application_id in told.application_ids:
            self._drop_ended_inference((told.ingress_id, application_id, None))

    def forget_ingress(self, ingress_id: IngressId) -> None:
        """Drop the records of a lost ingress. O(n)."""
        for key in [key for key in self._kept if key[0] == ingress_id]:
            self._drop_ended_inference(key)

    def names(self) -> Iterator[ApplicationId]:
        """Yield the applications that have records."""
        return iter(self._of)

    def record(self, application_id: ApplicationId) -> Record | None:
        """Return the records of an application as JSON; None if there are none."""
        ends = self._of.get(application_id)
        if ends is None:
            return None
        return {
            "inferences": {**ends.inferences},
            "openers": [*ends.openers],
            "unfinished": ends.unfinished,
        }

    def restore(self, application_id: ApplicationId, record: object) -> set[IngressId]:
        """Restore the records of an application; return the ingresses to notify of them.

        Raises:
            ValueError: If a field is missing or has a wrong type.
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

    # --- internals

    def _ends_of_application(self, application_id: ApplicationId) -> _ApplicationEnds:
        return self._of.setdefault(application_id, _ApplicationEnds())

    def _keep_ended_inference(self, key: _Key) -> None:
        self._kept[key] = self._new[key] = None
        self._changed[key[1]] = None
        if len(self._kept) > _MOST:
            self._drop_ended_inference(next(iter(self._kept)))

    def _drop_ended_inference(self, key: _Key) -> None:
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
