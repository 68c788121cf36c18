"""Durable part of the core's state as JSON: virtual time V, tags, charges.

Inferences and leases are not included: after a restart the ingresses resubmit outstanding
inferences and the replicas report running leases (`recovery`). Records have this version's form;
the store converts earlier ones (`store.migrations`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from justitia_ray.core.clock.fair_share import Account
from justitia_ray.core.entities import Application
from justitia_ray.core.policies import Durable
from justitia_ray.core.policies.names import policy_path
from justitia_ray.core.prefill_account import PrefillAccount
from justitia_ray.core.prefill_costs import restore_measured
from justitia_ray.core.records import Fields, Record, RecordReader, read_fields
from justitia_ray.core.scheduler import SchedulerCore
from justitia_ray.core.stages import read_stages
from justitia_ray.core.states import ApplicationState
from justitia_ray.core.tenants import DEFAULT_TIER
from justitia_ray.errors import StoreError
from justitia_ray.units import ApplicationId, Seconds

_CLOCK_FIELDS: Fields = {
    "virtual_time": RecordReader.number,
    "kind": RecordReader.text,
    "sequence": RecordReader.integer,
    "grants": RecordReader.integer,
    "policy": RecordReader.text,
}
_APPLICATION_FIELDS: Fields = {
    "application_class": RecordReader.text,
    "tenant": RecordReader.text,
    "weight": RecordReader.positive,
    "predicted_kv_token_time": RecordReader.number,
    "ingress_id": RecordReader.text,
    "arrived_at": RecordReader.number,
    "sequence": RecordReader.integer,
    "inferences": RecordReader.integer,
    "output_tokens": RecordReader.integer,
    "first_dispatched_at": RecordReader.number_or_none,
    "failed": RecordReader.integer,
    "kv_token_time": RecordReader.number,
    "unfinished_kv_token_time": RecordReader.number,
}
_LATER_FIELDS: Fields = {
    "recognized_by": RecordReader.text,
    "idle_s": RecordReader.positive,
    "deadline_s": RecordReader.positive,
    "expected_stages": read_stages,
    "tier": RecordReader.text,
    "prompt_tokens": RecordReader.integer,
    "cached_tokens": RecordReader.integer,
    "full_weight": RecordReader.positive,
}
"""Fields of an application's record that are omitted at their defaults, as in records of earlier
releases.
"""
_ACCOUNT_FIELDS: Fields = {
    "charged": RecordReader.number,
    "attained": RecordReader.number,
    "withdrawn": RecordReader.flag,
    "settlements": RecordReader.integer,
}


def clock_record(core: SchedulerCore) -> Record:
    """Return virtual time V, and the kind of the clock that moves V."""
    branches, policy = core.ledger.fair_share.clock_state(), core.ledger.policy
    suspects, ratios = core.suspects, core.state.prefill_ratios
    measured = core.state.measured_prefill
    return {
        "virtual_time": core.ledger.fair_share.clock.virtual_time,
        "kind": core.ledger.options.accounts_kind,
        "sequence": core.state.sequence,
        "grants": core.state.grants,
        "policy": core.ledger.policy_name,
        "counted": policy.state() if isinstance(policy, Durable) else {},
        **({"branches": branches} if branches else {}),
        **({"suspects": suspects.record()} if suspects.known else {}),
        **({"prefill_ratios": ratios.record()} if ratios.sums else {}),
        **({"measured_prefill": measured.record()} if measured else {}),
    }


def application_record(core: SchedulerCore, application_id: ApplicationId) -> Record | None:
    """Return the stored state of one application; None if there is none.

    An application that ended while GPS still owed it service has a session left, without an
    account. An application with kept records of ended inferences has these left (`kept_ends`).
    """
    record = core.ledger.fair_share.session_record(application_id)
    ends = core.state.ends.record(application_id)
    if ends is not None:
        record = (record or {}) | {"ends": ends}
    if record is None:
        return None
    application = core.state.applications.get(application_id)
    if application is None:
        return record
    account, policy = core.ledger.fair_share.accounts[application_id], core.ledger.policy
    record |= {name: getattr(application, name) for name in _APPLICATION_FIELDS}
    later: Record = {
        "recognized_by": application.recognized_by,
        "idle_s": application.idle_s,
        "deadline_s": application.deadline_s,
        "expected_stages": [[*stage] for stage in application.expected_stages],
        "prompt_tokens": application.prompt_tokens,
        "cached_tokens": application.cached_tokens,
        "full_weight": application.weight if application.is_deprioritised else None,
        "counted": policy.application_state(application_id)
        if isinstance(policy, Durable)
        else None,
        "tier": "" if application.tier == DEFAULT_TIER else application.tier,
        "keepers": application.keepers,
    }
    record |= {name: value for name, value in later.items() if value}
    if application.prefill is not None:
        record |= application.prefill.record()
    record["weight"] = account.weight  # also the weight in GPS
    record |= {name: getattr(account, name) for name in _ACCOUNT_FIELDS}
    return record | {
        "state": application.state.public_name,
        "replicas": [*application.replicas],
        "ended_leases": [*application.ended_leases],
    }


def durable_names(core: SchedulerCore) -> Iterator[ApplicationId]:
    """Yield the applications that have a record, some of the applications twice. O(N)."""
    yield from core.ledger.fair_share.sessions()
    yield from core.state.ends.names()


def snapshot(core: SchedulerCore) -> Record:
    """Return the whole stored state of a core, in the form that `restore` accepts."""
    records = {name: application_record(core, name) for name in durable_names(core)}
    return {"clock": clock_record(core), "applications": records}


def latest_recorded_time(applications: Iterable[Record]) -> Seconds:
    """Return the latest time in the records; minus infinity if the records have no time.

    Later times must not be before it, even if the wall clock was set back.
    """
    named = ("arrived_at", "first_dispatched_at")
    instants = (record.get(name) for record in applications for name in named)
    return max((at for at in instants if isinstance(at, int | float)), default=-math.inf)


def checkpoint_time(clock: Record | None) -> Seconds:
    """Return the time of the checkpoint in a clock's record; minus infinity if unknown."""
    at = (clock or {}).get("saved_at")
    return at if isinstance(at, int | float) else -math.inf


def restore(
    core: SchedulerCore, clock: Record | None, applications: Mapping[ApplicationId, Record]
) -> None:
    """Restore the stored state in a core that has handled no event since `recover`.

    If the recorded accounts are of another kind than those of the core, they are converted as when
    the policy of a running scheduler changes.

    Raises:
        StoreError: If a field of a record is missing or wrong; the core is then unusable.
    """
    if clock is None:
        return
    try:
        fields = read_fields(clock, _CLOCK_FIELDS)
    except ValueError as error:
        raise StoreError(f"clock: the stored record is damaged ({error!r})") from error
    core.ledger.start_clock(fields["virtual_time"])
    core.state.sequence = fields["sequence"]
    # The number of leases orders them in the engine, where leases from before the restart run.
    core.state.grants = fields["grants"]
    try:
        core.suspects.restore(clock.get("suspects", {}))
    except ValueError as error:
        raise StoreError(f"clock.suspects: the stored record is damaged ({error!r})") from error
    try:
        core.state.prefill_ratios.restore(clock.get("prefill_ratios", {}))
        if "measured_prefill" in clock:
            restore_measured(core.state, clock["measured_prefill"])
    except ValueError as error:
        raise StoreError(f"clock: the stored record is damaged ({error!r})") from error
    share = core.ledger.fair_share
    branches = clock.get("branches", {})
    same_kind = fields["kind"] == core.ledger.options.accounts_kind and share.can_restore(
        (str(record.get("tenant", "")) for record in applications.values()), branches
    )
    if same_kind:
        try:
            share.restore_clock_state(branches)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"clock.branches: the stored record is damaged ({error!r})") from error
        sessions = {
            name: record for name, record in applications.items() if not _has_only_ends(record)
        }
        _restore_all_records(sessions, share.prepare_restore)
        _restore_all_records(
            sessions,
            lambda name, record: share.restore_session(name, record, live="state" in record),
        )
    _restore_all_records(
        applications, lambda name, record: _restore_application(core, name, record)
    )
    _restore_all_records(
        applications, lambda name, record: _restore_ended_inferences(core, name, record)
    )
    if not same_kind:
        core.state.changed.update(dict.fromkeys(applications))
        core.ledger.restart_clock()
        return
    share.end_restore()
    for application in core.state.applications.values():
        # Records of earlier releases have one GPS clock for applications within and beyond quota.
        if application.is_deprioritised and share.sets_apart:
            share.move(application.application_id, application.leaf, application.weight)
    core.ledger.change_tenants()  # configured weights may have changed
    core.ledger.reorder()  # the times of earlier levels are unknown
    policy = core.ledger.policy
    known = (core.ledger.policy_name, *policy.GOES_ON_FROM)
    if policy_path(str(fields["policy"])) in known and isinstance(policy, Durable):
        try:
            policy.restore(RecordReader(clock, ("counted",), None).mapping("counted"))
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"clock.counted: the stored record is damaged ({error!r})") from error
        counting = policy
        _restore_all_records(
            applications, lambda n, record: _restore_counted_usage(core, counting, n, record)
        )


def _has_only_ends(record: Record) -> bool:
    """Return whether a record contains nothing but records of ended inferences."""
    return isinstance(record, Mapping) and [*record] == ["ends"]


def _restore_all_records(
    applications: Mapping[ApplicationId, Record],
    restore_one: Callable[[ApplicationId, Record], None],
) -> None:
    # A store returns the records of applications in any order.
    for application_id, record in sorted(applications.items()):
        try:
            restore_one(application_id, record)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"applications[{application_id}]: the stored record is damaged ({error!r})"
            ) from error


def _restore_application(
    core: SchedulerCore, application_id: ApplicationId, record: Record
) -> None:
    if "state" not in record:
        return
    reader = RecordReader(record, ("replicas", "ended_leases"), None)
    later = {name: read for name, read in _LATER_FIELDS.items() if name in record}
    fields = read_fields(record, {**_APPLICATION_FIELDS, **later})
    weight, full_weight = fields["weight"], fields.pop("full_weight", None)
    if full_weight is not None:
        fields |= {"weight": full_weight, "is_deprioritised": True}
    application = Application(
        application_id=application_id,
        replicas=dict.fromkeys(reader.items("replicas")),
        ended_leases=dict.fromkeys(reader.items("ended_leases")),
        **fields,
    )
    if "keepers" in record:
        keepers = RecordReader(record, ("keepers",), None).items("keepers")
        for name in keepers:
            application.opener(str(name)).keeps_ends = True
            core.ingresses.heartbeat(str(name))  # an ingress that is lost stays silent
    core.ledger.fair_share.accounts[application_id] = Account(
        weight=weight,
        sequence=application.sequence,
        **read_fields(record, _ACCOUNT_FIELDS),
    )
    application.booked_before = application.unfinished_kv_token_time
    application.prefill = PrefillAccount.restored(record)
    core.applications.adopt(application, is_closed=_is_closed(record))


def _is_closed(record: Record) -> bool:
    state = record["state"]
    if state not in (ApplicationState.OPEN.public_name, ApplicationState.CLOSING.public_name):
        raise ValueError(f"state is {state!r}: open and closing are allowed")
    return bool(state == ApplicationState.CLOSING.public_name)


def _restore_ended_inferences(
    core: SchedulerCore, application_id: ApplicationId, record: Record
) -> None:
    if "ends" in record:
        for ingress_id in core.state.ends.restore(application_id, record["ends"]):
            core.ingresses.heartbeat(ingress_id)


def _restore_counted_usage(
    core: SchedulerCore, policy: Durable, application_id: ApplicationId, record: Record
) -> None:
    if "counted" in record:
        state = RecordReader(record, ("counted",), None).mapping("counted")
        application = core.state.applications[application_id]
        policy.restore_application(application, state)
