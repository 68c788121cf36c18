"""Migrations of stored data from earlier schema versions: one step for each version.

A step is a pure function of the JSON records of a scheduler. The scheduler that becomes the leader
on older data applies the steps: it raises the epoch first, so that an older scheduler can no longer
write, and the migrated records are written together with the new version in one script. Before that
script nothing is changed: if a scheduler dies half-way, the old data are intact, and the next one
starts over.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from justitia_ray.application_key import application_key
from justitia_ray.store.schema import SCHEMA_VERSION, JsonObject
from justitia_ray.units import ApplicationId


@dataclass(frozen=True, slots=True)
class Records:
    """Stored records that migration steps transform."""

    clock: JsonObject | None
    applications: Mapping[ApplicationId, JsonObject]


def migrated(version: int, records: Records) -> Records:
    """Return records of schema `version` in the form of the current version."""
    for step in range(version, SCHEMA_VERSION):
        records = MIGRATIONS[step](records)
    return records


def _migrate_from_1(records: Records) -> Records:
    """Fill in fields that version 1 did not always write.

    All policies then counted KV token-time, so an application's `kv_token_time` equals its
    `attained`. The counts of a policy are unknown and start at zero.
    """
    clock = records.clock
    if clock is not None:
        clock = {"grants": 0, "policy": "", "counted": {}, **clock}
    applications = {}
    for name, record in records.applications.items():
        # A live application; other records are of ended applications that GPS still serves.
        if "state" in record and "attained" in record:
            filled = {"replicas": [], "ended_leases": [], "kv_token_time": record["attained"]}
            record = filled | record
        applications[name] = record
    return Records(clock, applications)


def _migrate_from_2(records: Records) -> Records:
    """Prefix application ids with their tenant; before, all tenants shared one set of ids.

    Ended applications that GPS still serves keep their ids without a tenant. The counts of a policy
    may be by application, and start at zero.
    """
    clock = records.clock
    if clock is not None:
        clock = {**clock, "counted": {}}
    applications = {
        application_key(str(record.get("tenant", _DEFAULT_TENANT)), name): record
        for name, record in records.applications.items()
    }
    return Records(clock, applications)


_DEFAULT_TENANT = "default"

MIGRATIONS: dict[int, Callable[[Records], Records]] = {1: _migrate_from_1, 2: _migrate_from_2}
"""Migration steps by the schema version that they start from."""
