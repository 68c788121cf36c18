"""The durable part of the core's state: V, tags, charges. All JSON.

Inferences and leases are not in it: after a restart the ingresses submit what they have outstanding
and the replicas report what they run (`recovery`).
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from justitia_ray.core.entities import Application, ApplicationState
from justitia_ray.core.fair_share import Account
from justitia_ray.core.scheduler import SchedulerCore
from justitia_ray.core.virtual_clock import VirtualClock
from justitia_ray.errors import StoreError
from justitia_ray.units import ApplicationId

Record = dict[str, Any]

_NUMBER = (int, float)
_APPLICATION_FIELDS: dict[str, tuple[type, ...]] = {
    "application_class": (str,),
    "tenant": (str,),
    "weight": _NUMBER,
    "predicted_kv_token_time": _NUMBER,
    "ingress_id": (str,),
    "arrived_at": _NUMBER,
    "sequence": (int,),
    "inferences": (int,),
    "output_tokens": (int,),
    "first_dispatched_at": (*_NUMBER, type(None)),
    "failed": (int,),
    "unfinished_kv_token_time": _NUMBER,
}
_ACCOUNT_FIELDS: dict[str, tuple[type, ...]] = {
    "charged": _NUMBER,
    "attained": _NUMBER,
    "withdrawn": (bool,),
    "settlements": (int,),
}


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
    """Put the durable state back into a core that has handled nothing since `recover`.

    If the core has another kind of clock than the one recorded, the accounts go over to it as they
    do when the policy of a running scheduler changes.

    Raises:
        StoreError: If a record lacks a field or holds something else in one than it should; the
            core is of no use then.
    """
    if clock is None:
        return
    try:
        fair_share = core.order.fair_share
        fair_share.clock = VirtualClock(_checked(clock, "virtual_time", _NUMBER))
        core.state.sequence = _checked(clock, "sequence", (int,))
        kind = _checked(clock, "kind", (str,))
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"clock: the stored record is damaged ({error!r})") from error
    for application_id, record in applications.items():
        try:
            _restore_application(core, application_id, record)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"applications[{application_id}]: the stored record is damaged ({error!r})"
            ) from error
    if kind != core.order.options.clock:
        core.order.restart_clock()


def _restore_application(
    core: SchedulerCore, application_id: ApplicationId, record: Record
) -> None:
    is_live = "state" in record
    fair_share = core.order.fair_share
    fair_share.clock.restore_session(
        application_id,
        _checked(record, "finish", _NUMBER),
        _positive(record, "weight"),
        _checked(record, "sequence", (int,)),
        released=not is_live,
    )
    if not is_live:
        return
    application = Application(
        application_id=application_id,
        state=ApplicationState(record["state"]),
        **{name: _checked(record, name, kinds) for name, kinds in _APPLICATION_FIELDS.items()},
    )
    fair_share.accounts[application_id] = Account(
        weight=application.weight,
        sequence=application.sequence,
        **{name: _checked(record, name, kinds) for name, kinds in _ACCOUNT_FIELDS.items()},
    )
    application.booked_before = application.unfinished_kv_token_time
    core.applications.adopt(application)


def _checked(record: Record, name: str, kinds: tuple[type, ...]) -> Any:
    value = record[name]
    # A bool is an int to Python, but never a count.
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise TypeError(f"{name}: {value!r}")
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{name}: {value!r}")
    return value


def _positive(record: Record, name: str) -> Any:
    value = _checked(record, name, _NUMBER)
    if value <= 0:
        raise ValueError(f"{name}: {value!r} must be above 0")
    return value
