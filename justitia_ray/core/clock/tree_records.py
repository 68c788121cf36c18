"""Durable records of a tree of tenants: what a snapshot contains of its leaves and branches.

An application's record has its tag, its remaining work and the time at which it was finished. The
state of a leaf is saved in the record of one of its applications, the carrier, and passes to
another application when the carrier is removed; so it is saved only when it changes, however many
tenants there are. The state of a branch is in the record of the clock, which is saved each time.
"""

from typing import Any

from justitia_ray.core.clock.fair_share import SESSION_FIELDS
from justitia_ray.core.clock.hierarchy import Hierarchy
from justitia_ray.core.records import Fields, Record, RecordReader
from justitia_ray.core.tenants import BEYOND, beyond, settings_path
from justitia_ray.units import ApplicationId, ClientId

MEMBER_FIELDS: Fields = {
    **SESSION_FIELDS,
    "tenant": RecordReader.text,
    "remaining": RecordReader.number,
    "finished": RecordReader.number_or_none,
}
"""Names of the fields in the stored record of an application."""

NODE_FIELDS: Fields = {
    **SESSION_FIELDS,
    "released": RecordReader.flag,
    "since": RecordReader.number,
    "virtual_time": RecordReader.number,
}
"""Names of the fields in the stored state of a tenant."""


def application_record(nodes: Hierarchy, application_id: ApplicationId) -> Record | None:
    """Return the stored form of an application in its tenant: its tag and remaining work.

    None if nothing is owed.

    The record of a carrier also has the state of its leaf.
    """
    path = nodes.path_of.get(application_id)
    if path is None or not nodes.has_gps_session(nodes.leaves[path]):
        return None
    leaf = nodes.leaves[path]
    session = leaf.gps.session(application_id)
    finished = leaf.server.finished(application_id)
    record: Record = {
        "finish": session.finish,
        "weight": session.weight,
        "sequence": session.sequence,
        "tenant": settings_path(path),
        "remaining": leaf.server.remaining(application_id),
        "finished": finished,
    }
    if path != record["tenant"]:
        record["beyond"] = True
    if finished is not None and (above := leaf.above.get(application_id)):
        record["above"] = [*above]
    if application_id != leaf.carrier:
        return record
    in_parent = nodes.clock_of(leaf).session(leaf.name)
    return record | {
        "carries": {
            "finish": in_parent.finish,
            "weight": leaf.server.weight,
            "sequence": in_parent.sequence,
            "released": in_parent.released,
            "since": leaf.server.since,
            "virtual_time": leaf.gps.virtual_time,
        }
    }


def branch_records(nodes: Hierarchy) -> dict[str, Any]:
    """Return the stored form of the tenants with children, by path."""
    found: dict[str, Any] = {}
    for path, branch in nodes.kept_branches().items():
        session = nodes.clock_of(branch).session(branch.name)
        found[path] = {
            "finish": session.finish,
            "weight": branch.weight,
            "sequence": session.sequence,
            "released": session.released,
            "since": branch.since,
            "virtual_time": branch.clock.virtual_time,
        }
    if BEYOND in found:
        found[BEYOND]["above"] = nodes.beyond.virtual_time
    return found


def leaf_path(record: Record) -> ClientId:
    """Return the path of the tenant to which an application's record belongs."""
    tenant = RecordReader(record, ("tenant",), None).text("tenant")
    return beyond(tenant) if "beyond" in record else tenant
