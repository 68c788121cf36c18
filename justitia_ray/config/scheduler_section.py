"""`scheduler`: its time-outs and limits."""

from typing import Annotated

from pydantic import Field

from justitia_ray.config.section import Name, Positive, Section


class SchedulerSection(Section):
    """The scheduler actor."""

    num_cpus: Annotated[float, Field(gt=0)] = 0.1
    """Above 0, so that KubeRay keeps it off a head node that offers no CPUs."""
    namespace: Name = "justitia"
    lease_timeout_s: Positive = 5.0
    replica_timeout_s: Positive = 4.0
    """Work of a silent replica is re-leased within 5 s."""
    ingress_timeout_s: Positive = 30.0
    """Above the 20 s of a long-poll."""
    application_idle_s: Positive = 600.0
    """Ends applications that are never closed; tool gaps are shorter."""
    recovery_s: Positive = 3.0
    abandoned_s: Positive = 600.0
    """The actor ends itself when nobody has called for so long."""
    max_waiting_inferences: Annotated[int, Field(gt=0)] = 200_000
    """Waiting or running; more are refused with 429. They take 0.2 GB."""
    max_open_applications: Annotated[int, Field(gt=0)] = 50_000
    """More are refused with 429. They take 0.2 GB, and a save of all of them about a second."""
