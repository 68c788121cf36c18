"""The durable part of the core's state: V, tags, charges. All JSON.

Inferences and leases are not in it: after a restart the ingresses submit what they have outstanding
and the replicas report what they run (`recovery`).
"""

from collections.abc import Mapping
from typing import Any

from justitia_ray.core.entities import Application, ApplicationState
from justitia_ray.core.fair_share import Account
from justitia_ray.core.scheduler import SchedulerCore
from justitia_ray.errors import StoreError
from justitia_ray.units import ApplicationId

Record = dict[str, Any]

_APPLICATION_FIELDS = (
    "application_class",
    "tenant",
    "weight",
    "predicted_kv_token_time",
    "ingress_id",
    "arrived_at",
    "sequence",
    "inferences",
    "output_tokens",
    "first_dispatched_at",
    "failed",
)
_ACCOUNT_FIELDS = ("charged", "attained", "withdrawn", "settlements")


def clock_record(core: SchedulerCore) -> Record:
    """Return V, and which clock it is of."""
    return {
        "virtual_time": core.order.fair_share.clock.virtual_time,
        "kind": core.order.options.clock,
        "sequence": core.state.sequence,
    }


def application_record(core: SchedulerCore, application_id: ApplicationId) -> Record | None:
    """Return what must outlive the scheduler of one application; None if nothing.

    An application that ended while GPS still owed it leaves its session behind, without an account.
    """
    clock = core.order.fair_share.clock
    if application_id not in clock:
        return None
    session = clock.session(application_id)
    record: Record = {"finish": session.finish, "weight": session.weight}
    application = core.state.applications.get(application_id)
    if application is None:
        return record | {"sequence": session.sequence}
    account = core.order.fair_share.accounts[application_id]
    record |= {name: getattr(application, name) for name in _APPLICATION_FIELDS}
    record |= {name: getattr(account, name) for name in _ACCOUNT_FIELDS}
    return record | {"state": application.state.value}


def snapshot(core: SchedulerCore) -> Record:
    """Return the whole durable state, as `restore` takes it."""
    names = [*core.order.fair_share.clock.sessions()]
    records = {name: application_record(core, name) for name in names}
    return {"clock": clock_record(core), "applications": records}


def restore(
    core: SchedulerCore, clock: Record | None, applications: Mapping[ApplicationId, Record]
) -> None:
    """Put the durable state back into a core that has handled nothing yet.

    If the core has another kind of clock than the one recorded, V and the tags still hold: each is
    a point on the same axis.

    Raises:
        StoreError: If a record lacks a field or holds something else than a number in one.
    """
    if clock is None:
        return
    try:
        fair_share = core.order.fair_share
        fair_share.clock = type(fair_share.clock)(float(clock["virtual_time"]))
        core.state.sequence = int(clock["sequence"])
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"clock: the stored record is damaged ({error!r})") from error
    for application_id, record in applications.items():
        try:
            _restore_application(core, application_id, record)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"applications[{application_id}]: the stored record is damaged ({error!r})"
            ) from error


def _restore_application(
    core: SchedulerCore, application_id: ApplicationId, record: Record
) -> None:
    is_live = "state" in record
    fair_share = core.order.fair_share
    fair_share.clock.restore_session(
        application_id,
        float(record["finish"]),
        float(record["weight"]),
        int(record["sequence"]),
        released=not is_live,
    )
    if not is_live:
        return
    application = Application(
        application_id=application_id,
        state=ApplicationState(record["state"]),
        **{name: record[name] for name in _APPLICATION_FIELDS},
    )
    fair_share.accounts[application_id] = Account(
        weight=application.weight,
        sequence=application.sequence,
        **{name: record[name] for name in _ACCOUNT_FIELDS},
    )
    core.applications.adopt(application)
