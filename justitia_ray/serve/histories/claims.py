"""What ingresses claim of a new scheduler, held against what replicas have told it.

An ingress that has not read its answer to the end claims the lease under which that was made. Where
the replica has told the scheduler that the lease has ended, nothing is left to be run.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.serve.line import Line
from justitia_ray.units import LeaseId, ReplicaId, RequestId, Seconds

_REMEMBERED_S: Seconds = 60.0
"""A replica tells a new scheduler what ended so lately."""


@dataclass(frozen=True, slots=True)
class FinishedLease:
    """A lease whose inference was made to its end."""

    replica_id: ReplicaId
    first_pull: int
    """Number of the first pull of its replica that can tell of it."""
    at_s: Seconds


class Claims:
    """The claims made of one scheduler that are not settled."""

    def __init__(self, finished: Mapping[LeaseId, FinishedLease], forgets_after_s: Seconds) -> None:
        """Begin with none.

        Args:
            finished: What was made to its end, over all replicas and schedulers.
            forgets_after_s: A scheduler waits so long for a claim of what a replica has told it.
        """
        self._finished = finished
        self._forgets_after_s = forgets_after_s
        self._made: set[RequestId] = set()
        self.pending: dict[RequestId, LeaseId] = {}
        """No replica has told of these leases."""

    def note(self, submitted: ev.InferenceSubmitted) -> None:
        """An inference is submitted; a message that is repeated later claims nothing again."""
        name = submitted.request_id
        if name not in self._made and submitted.lease_id is not None:
            self.pending[name] = submitted.lease_id
        self._made.add(name)

    def run_again(
        self,
        core: SchedulerCore,
        lines: Mapping[ReplicaId, Line],
        in_office_s: Seconds,
        at_s: Seconds,
    ) -> list[str]:
        """Return who is to run again though all was made, and that was told.

        To be called after every event: what is settled by it is forgotten.

        Args:
            core: Of the scheduler, after an event.
            lines: Its lines to replicas.
            in_office_s: For how long it is in office.
            at_s: The instant, as the ends have it.
        """
        wrong = []
        for request_id, lease_id in list(self.pending.items()):
            inference = core.state.inferences.get(request_id)
            if inference is None:
                del self.pending[request_id]
                continue
            end = self._finished.get(lease_id)
            known = end is not None and end.replica_id in core.state.replicas
            if known and end is not None and _has_told(lines.get(end.replica_id), end):
                fresh = at_s - end.at_s < _REMEMBERED_S and in_office_s < self._forgets_after_s
                if fresh:
                    wrong.append(f"{request_id} though {end.replica_id} told that {lease_id} ended")
                del self.pending[request_id]
            elif request_id not in core.state.applications[inference.application_id].claimed:
                del self.pending[request_id]
        return wrong


def _has_told(line: Line | None, end: FinishedLease) -> bool:
    return (
        line is not None and line.last_pull is not None and line.last_pull.number >= end.first_pull
    )
