"""Shares of one model, for each node of the tree of tenants, for `/v1/status`."""

from justitia_ray.core import SchedulerCore
from justitia_ray.core.clock.branch import Node
from justitia_ray.core.clock.hierarchy import Hierarchy
from justitia_ray.core.clock.tenant_share import TenantShare
from justitia_ray.core.tenants import SEPARATOR, ancestors
from justitia_ray.protocol.status import NodeShare
from justitia_ray.units import ClientId

MAX_NODES = 1_000
"""Maximum number of tenants in an answer about shares. Tenants with most KV in use come first, then
tenants with most waiting inferences.
"""


def shares_view(core: SchedulerCore) -> tuple[NodeShare, ...]:
    """Return the shares of tenants with live applications, parents first; O(applications)."""
    waiting: dict[ClientId, int] = {}
    running: dict[ClientId, int] = {}
    for application in core.state.applications.values():
        for path in ancestors(application.tenant):
            waiting[path] = waiting.get(path, 0) + application.waiting_count
            running[path] = running.get(path, 0) + len(application.in_flight)
    held, total = core.kv_shares.held, core.state.kv_tokens()
    told = sorted(waiting, key=lambda path: (-held(path), -waiting[path], path))[:MAX_NODES]
    found = []
    for path in sorted(told, key=lambda path: path.split(SEPARATOR)):
        used, fair = held(path) / total if total else 0.0, _fair_share(core, path)
        settings = core.state.tenants.node(path)
        found.append(
            NodeShare(
                node=path,
                weight=_weight_at(core, path),
                fair_share=fair,
                guaranteed=settings.kv_share.guaranteed,
                used=used,
                borrowed=max(0.0, used - max(settings.kv_share.guaranteed, fair or 0.0)),
                waiting=waiting[path],
                running=running[path],
            )
        )
    return tuple(found)


def _node_at(core: SchedulerCore, path: ClientId) -> tuple[Hierarchy, Node] | None:
    share = core.ledger.fair_share
    if not isinstance(share, TenantShare):
        return None
    node = share.nodes.node(path)
    return None if node is None else (share.nodes, node)


def _weight_at(core: SchedulerCore, path: ClientId) -> float | None:
    """Return the weight φ of a tenant; None unless `fairness` is `tenant`."""
    found = _node_at(core, path)
    return None if found is None else found[1].weight


def _fair_share(core: SchedulerCore, path: ClientId) -> float | None:
    found = _node_at(core, path)
    return None if found is None else found[0].fair_fraction(found[1])
