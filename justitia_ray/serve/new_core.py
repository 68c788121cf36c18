"""The core of a scheduler that takes office: as configured, with what the last one left."""

import logging

from justitia_ray.config import SchedulerSection, SchedulingConfig
from justitia_ray.core import SchedulerCore, Timeouts
from justitia_ray.core.limits import Limits
from justitia_ray.core.snapshot import latest_instant, restore
from justitia_ray.observability.log_events import log_event
from justitia_ray.serve.steady_clock import SteadyClock
from justitia_ray.store.scheduler_store import StoredState
from justitia_ray.units import Epoch

logger = logging.getLogger(__name__)


def core_with(
    stored: StoredState,
    settings: SchedulingConfig,
    section: SchedulerSection,
    epoch: Epoch,
    clock: SteadyClock,
) -> SchedulerCore:
    """Return a core, recovering if there was a scheduler before, and log that it is in office.

    Args:
        stored: What that one left.
        settings: Policy and admission.
        section: Time-outs and limits.
        epoch: Its leases' names begin with it.
        clock: Set forward to what the last scheduler has noted, if it is behind.

    Raises:
        StoreError: If what is stored is damaged.
    """
    core = SchedulerCore(
        settings.policy,
        settings.policy_options,
        settings.admission,
        Timeouts(
            lease_s=section.lease_timeout_s,
            replica_s=section.replica_timeout_s,
            ingress_s=section.ingress_timeout_s,
            application_s=section.application_idle_s,
            recovery_s=section.recovery_s,
        ),
        lease_prefix=f"{epoch}-",
        limits=Limits(section.max_waiting_inferences, section.max_open_applications),
    )
    if stored.clock is not None:
        clock.not_before(latest_instant(stored.applications.values()))
        core.recover(stored.replicas, clock.now())
        restore(core, stored.clock, stored.applications)
    log_event(
        logger,
        logging.INFO,
        "scheduler.in_office",
        epoch=epoch,
        applications=len(stored.applications),
        awaited_replicas=len(stored.replicas),
        settings=settings.model_dump(),
    )
    return core
