"""Stored data of earlier versions are migrated, tested without Redis."""

from justitia_ray.core import SchedulerCore
from justitia_ray.core.snapshot import restore
from justitia_ray.store.migrations import MIGRATIONS, Records, migrated
from justitia_ray.store.schema import SCHEMA_VERSION
from tests.unit.store.version_one import APPLICATION, CLOCK, SESSION


def test_every_earlier_version_has_a_migration_step() -> None:
    """Without a step, stored data of that version could not be read."""
    assert list(range(1, SCHEMA_VERSION)) == sorted(MIGRATIONS)


def test_oldest_records_of_version_1_are_readable() -> None:
    records = migrated(1, Records(CLOCK, {"a": APPLICATION, "gone": SESSION}))
    core = SchedulerCore()
    core.recover({}, 1_000.0)
    restore(core, records.clock, records.applications)

    application = core.state.applications["t|a"]
    assert ({}, 640.0, 0) == (
        application.replicas,
        application.kv_token_time,
        core.state.grants,
    )
    assert {"t|a", "default|gone"} == set(core.ledger.fair_share.sessions())


def test_migration_keeps_the_fields_of_version_1() -> None:
    """The last releases of version 1 already wrote almost every field.

    A step only fills in missing ones.
    """
    clock = CLOCK | {"grants": 7, "policy": "vtc", "counted": {}}
    application = APPLICATION | {"replicas": ["r0"], "kv_token_time": 3.0}
    records = migrated(1, Records(clock, {"a": application}))

    assert clock == records.clock
    assert {"t|a": application | {"ended_leases": []}} == records.applications


def test_migration_of_version_2_adds_the_tenant_to_application_ids() -> None:
    """In version 2, ids were unique across tenants."""
    clock = CLOCK | {"grants": 7, "policy": "vtc", "counted": {"a": 1}}
    search = APPLICATION | {"tenant": "acme/search"}
    records = migrated(2, Records(clock, {"a": APPLICATION, "b": search, "gone": SESSION}))

    assert clock | {"counted": {}} == records.clock
    assert {"t|a", "acme/search|b", "default|gone"} == set(records.applications)
    assert search == records.applications["acme/search|b"]


def test_migration_passes_a_damaged_record_to_its_reader() -> None:
    """The reader's error names the application and the field."""
    damaged = {"state": "open"}

    assert {"default|a": damaged} == migrated(1, Records(None, {"a": damaged})).applications


def test_migration_leaves_records_of_the_current_version_unchanged() -> None:
    records = Records(CLOCK, {"a": APPLICATION})

    assert records is migrated(SCHEMA_VERSION, records)
