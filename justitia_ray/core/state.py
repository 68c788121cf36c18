"""What the rooms of the core share: the entities by id, the instant, and the actions so far."""

from dataclasses import dataclass, field

from justitia_ray.core.actions import Action
from justitia_ray.core.deadlines import Deadlines
from justitia_ray.core.entities import Application, Inference, Lease, Replica
from justitia_ray.core.limits import Census
from justitia_ray.core.tally import Tally
from justitia_ray.units import (
    ApplicationId,
    IngressId,
    LeaseId,
    ReplicaId,
    RequestId,
    Seconds,
)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """When silence is taken for absence, in seconds."""

    lease_s: Seconds = 5.0
    """A lease whose payload has not reached its replica lapses."""
    replica_s: Seconds = 4.0
    """A replica that has not pulled is lost: re-leasing within 5 s is the target."""
    ingress_s: Seconds = 30.0
    """An ingress that has not called is lost; its long-polls take 20 s."""
    application_s: Seconds = 600.0
    """An open application with nothing to do ends."""
    recovery_s: Seconds = 3.0
    """A new scheduler waits so long for the replicas that it knows of."""


@dataclass(slots=True)
class State:
    """The entities. Rooms change them; `scheduler` decides which room an event goes to."""

    timeouts: Timeouts
    lease_prefix: str = ""
    now: Seconds = 0.0
    sequence: int = 0
    grants: int = 0
    room_changes: int = 0
    """Rises whenever a replica may have got room for something that did not fit before."""
    late_reports: int = 0
    """Reports about leases that had ended: counted and dropped."""
    applications: dict[ApplicationId, Application] = field(default_factory=dict)
    inferences: dict[RequestId, Inference] = field(default_factory=dict)
    leases: dict[LeaseId, Lease] = field(default_factory=dict)
    replicas: dict[ReplicaId, Replica] = field(default_factory=dict)
    asking: dict[ReplicaId, Replica] = field(default_factory=dict)
    """Replicas that ask for work: those to which no answer is on its way."""
    ingresses: dict[IngressId, Seconds] = field(default_factory=dict)
    """When each was last heard of."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    open_applications: Census = field(default_factory=Census)
    known_inferences: Census = field(default_factory=Census)
    tally: Tally = field(default_factory=Tally)
    actions: list[Action] = field(default_factory=list)
    changed: dict[ApplicationId, None] = field(default_factory=dict)
    """Applications whose durable record changed, in order."""

    @property
    def waiting(self) -> int:
        """Inferences without a lease."""
        return len(self.inferences) - len(self.leases)

    def next_sequence(self) -> int:
        """Return the next arrival number, of applications and inferences alike."""
        self.sequence += 1
        return self.sequence
