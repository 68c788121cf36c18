"""What was seen at one time."""

from dataclasses import dataclass

from justitia_ray.protocol.examination import (
    ApplicationSeen,
    Examination,
    Limits,
    SchedulerSeen,
    StoreSeen,
)
from justitia_ray.store.scheduler_store import StoredState
from justitia_ray.units import ApplicationId


@dataclass(frozen=True, slots=True)
class Look:
    """The service's own words, and its Redis's."""

    seen: Examination
    predictor_trouble: str | None = None
    """Why the predictor gave no answer."""
    predictor_learns: bool = True
    """Whether the predictor that answered is the one that learns."""
    stored: StoredState | None = None
    """None if Redis was not looked at, or could not be read."""
    redis_away: str | None = None
    """Why Redis could not be reached."""
    redis_damage: str | None = None
    """Why what Redis holds could not be read."""

    @property
    def office(self) -> SchedulerSeen | None:
        """The scheduler, if it answered and is in office."""
        scheduler = self.seen.scheduler
        return scheduler if scheduler is not None and scheduler.ready else None

    @property
    def applications(self) -> dict[ApplicationId, ApplicationSeen]:
        """Live applications; none if no scheduler is in office."""
        return {} if self.office is None else self.office.applications

    @property
    def store(self) -> StoreSeen | None:
        """What the scheduler says of its store."""
        return None if self.office is None else self.office.store

    def of_office(self) -> "OfficeLook | None":
        """Return what is seen of the scheduler in office and beside it; None if there is none."""
        office = self.office
        if office is None or office.limits is None:  # one in office always says its limits
            return None
        return OfficeLook(self.seen, self.stored, office, office.limits)


@dataclass(frozen=True, slots=True)
class OfficeLook:
    """A look at a service whose scheduler is in office."""

    seen: Examination
    stored: StoredState | None
    office: SchedulerSeen
    limits: Limits
    """From when on silence means something."""
