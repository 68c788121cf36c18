"""Migrations of the data of earlier schema versions to this version's: a step for each version.

A step is a pure function of the JSON that a scheduler keeps. The scheduler that becomes the leader
on older data applies the steps: its epoch is raised first, so that an older scheduler writes no
more, and the migrated records are written together with the new version, in one script. Before
that script nothing is changed: a scheduler that dies half-way leaves the older data as they were,
and the next one begins again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from justitia_ray.application_key import application_key
from justitia_ray.store.schema import SCHEMA_VERSION, JsonObject
from justitia_ray.units import ApplicationId


@dataclass(frozen=True, slots=True)
class Records:
    """Stored records that the steps change."""

    clock: JsonObject | None
    applications: Mapping[ApplicationId, JsonObject]


def migrated(version: int, records: Records) -> Records:
    """Return the records of `version`, at most this one, in the form of this one."""
    for step in range(version, SCHEMA_VERSION):
        records = MIGRATIONS[step](records)
    return records


def _from_1(records: Records) -> Records:
    """Fill in the fields that version 1 did not always write.

    All accounts were kept in KV token-time then, so an application took what it attained. The
    counts of a policy are not known: they begin anew.
    """
    clock = records.clock
    if clock is not None:
        clock = {"grants": 0, "policy": "", "counted": {}, **clock}
    applications = {}
    for name, record in records.applications.items():
        if "state" in record and "attained" in record:  # live; others are only GPS's
            filled = {"replicas": [], "ended_leases": [], "kv_token_time": record["attained"]}
            record = filled | record
        applications[name] = record
    return Records(clock, applications)


def _from_2(records: Records) -> Records:
    """Put the tenant before the ids of applications, which were the same for all tenants.

    What GPS still owed to applications that had ended goes by without their tenant. Counts of a
    policy may be by application: they begin anew.
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

MIGRATIONS: dict[int, Callable[[Records], Records]] = {1: _from_1, 2: _from_2}
"""Steps by the version that they begin with; each leads to the next version."""
