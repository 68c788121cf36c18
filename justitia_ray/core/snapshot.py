"""The durable part of the core's state: V, tags, charges. All JSON.

Inferences and leases are not in it: after a restart the ingresses submit what they have outstanding
and the replicas report what they run (`recovery`). Records are of this version's form: those of
earlier ones are brought to it by the store (`store.migrations`).
"""

import math
from collections.abc import Callable, Iterable, Mapping

from justitia_ray.core.entities import Application, ApplicationState
from justitia_ray.core.fair_share import Account
from justitia_ray.core.records import NUMBER, Record, checked, positive
from justitia_ray.core.scheduler import SchedulerCore
from justitia_ray.core.virtual_clock import VirtualClock
from justitia_ray.errors import StoreError
from justitia_ray.units import ApplicationId, Seconds

__all__ = [
    "Record",
    "application_record",
    "clock_record",
    "latest_instant",
    "restore",
    "snapshot",
]

_APPLICATION_FIELDS: dict[str, tuple[type, ...]] = {
    "application_class": (str,),
    "tenant": (str,),
    "weight": NUMBER,
    "predicted_kv_token_time": NUMBER,
    "ingress_id": (str,),
    "arrived_at": NUMBER,
    "sequence": (int,),
    "inferences": (int,),
    "output_tokens": (int,),
    "first_dispatched_at": (*NUMBER, type(None)),
    "failed": (int,),
    "kv_token_time": NUMBER,
    "unfinished_kv_token_time": NUMBER,
}
_ACCOUNT_FIELDS: dict[str, tuple[type, ...]] = {
    "charged": NUMBER,
    "attained": NUMBER,
    "withdrawn": (bool,),
    "settlements": (int,),
}


def clock_record(core: SchedulerCore) -> Record:
    """Return V, and which clock it is of."""
    return {
        "virtual_time": core.order.fair_share.clock.virtual_time,
        "kind": core.order.options.accounts_kind,
        "sequence": core.state.sequence,
        "grants": core.state.grants,
        "policy": core.order.policy_name,
        "counted": core.order.policy.state(),
    }


def application_record(core: SchedulerCore, application_id: ApplicationId) -> Record | None:
    """Return what must outlive the scheduler of one application; None if nothing.

    An application that ended while GPS still owed it leaves its session behind, without an account.
    """
    record = core.order.fair_share.session_record(application_id)
    if record is None:
        return None
    application = core.state.applications.get(application_id)
    if application is None:
        return record
    account = core.order.fair_share.accounts[application_id]
    record |= {name: getattr(application, name) for name in _APPLICATION_FIELDS}
    record |= {name: getattr(account, name) for name in _ACCOUNT_FIELDS}
    return record | {
        "state": application.state.value,
        "replicas": [*application.replicas],
        "ended_leases": [*application.ended_leases],
    }


def snapshot(core: SchedulerCore) -> Record:
    """Return the whole durable state, as `restore` takes it."""
    names = [*core.order.fair_share.sessions()]
    records = {name: application_record(core, name) for name in names}
    return {"clock": clock_record(core), "applications": records}


def latest_instant(applications: Iterable[Record]) -> Seconds:
    """Return the latest instant that the records name; minus infinity if they name none.

    What comes after them must not be told an earlier one, though the wall clock was set back.
    """
    named = ("arrived_at", "first_dispatched_at")
    instants = (record.get(name) for record in applications for name in named)
    return max((at for at in instants if isinstance(at, int | float)), default=-math.inf)


def restore(
    core: SchedulerCore, clock: Record | None, applications: Mapping[ApplicationId, Record]
) -> None:
    """Put the durable state back into a core that has handled nothing since `recover`.

    If the core has another kind of accounts than those recorded, they go over to it as they do when
    the policy of a running scheduler changes.

    Raises:
        StoreError: If a record lacks a field or holds something else in one than it should; the
            core is of no use then.
    """
    if clock is None:
        return
    try:
        core.order.fair_share.clock = VirtualClock(checked(clock, "virtual_time", NUMBER))
        core.state.sequence = checked(clock, "sequence", (int,))
        # It orders grants in the engine, where leases of before still run.
        core.state.grants = checked(clock, "grants", (int,))
        kind = checked(clock, "kind", (str,))
        policy = checked(clock, "policy", (str,))
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"clock: the stored record is damaged ({error!r})") from error
    same_kind = kind == core.order.options.accounts_kind
    if same_kind:
        _for_each(core, applications, _restore_shared)
        _for_each(core, applications, _restore_session)
    _for_each(core, applications, _restore_application)
    if not same_kind:
        core.state.changed.update(dict.fromkeys(applications))
        core.order.restart_clock()
    elif policy == core.order.policy_name:
        try:
            core.order.policy.restore(checked(clock, "counted", (dict,)))
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"clock.counted: the stored record is damaged ({error!r})") from error


def _for_each(
    core: SchedulerCore,
    applications: Mapping[ApplicationId, Record],
    restore_one: Callable[[SchedulerCore, ApplicationId, Record], None],
) -> None:
    for application_id, record in sorted(applications.items()):  # a store has no order
        try:
            restore_one(core, application_id, record)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"applications[{application_id}]: the stored record is damaged ({error!r})"
            ) from error


def _restore_shared(core: SchedulerCore, application_id: ApplicationId, record: Record) -> None:
    core.order.fair_share.prepare_restore(application_id, record)


def _restore_session(core: SchedulerCore, application_id: ApplicationId, record: Record) -> None:
    core.order.fair_share.restore_session(application_id, record, live="state" in record)


def _restore_application(
    core: SchedulerCore, application_id: ApplicationId, record: Record
) -> None:
    if "state" not in record:
        return
    positive(record, "weight")
    application = Application(
        application_id=application_id,
        state=ApplicationState(record["state"]),
        replicas=dict.fromkeys(checked(record, "replicas", (list,))),
        ended_leases=dict.fromkeys(checked(record, "ended_leases", (list,))),
        **{name: checked(record, name, kinds) for name, kinds in _APPLICATION_FIELDS.items()},
    )
    core.order.fair_share.accounts[application_id] = Account(
        weight=application.weight,
        sequence=application.sequence,
        **{name: checked(record, name, kinds) for name, kinds in _ACCOUNT_FIELDS.items()},
    )
    application.booked_before = application.unfinished_kv_token_time
    core.applications.adopt(application)
