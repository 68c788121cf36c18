"""Justitia: applications in the order of their completion under GPS (v1, Sec. IV-C, Alg. 1)."""

import struct
from math import inf
from typing import ClassVar

from justitia_ray.core.clock.tenant_share import TenantShare
from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import Order, PolicyContext
from justitia_ray.core.policies.options import Option, flag
from justitia_ray.core.policies.tree_order import TreeOrder
from justitia_ray.core.queue import Key, LazyHeap
from justitia_ray.core.tenants import SEPARATOR
from justitia_ray.units import ClientId, VirtualTime

_RANKS_BEYOND_QUOTA = 0x7FF0 << 48
"""Engine priority of an infinite tag. Applications beyond quota have larger priorities, which keep
52 bits of their tags.
"""


class JustitiaPolicy(Order):
    """Policy that serves the application with the smallest tag F first, if memory allows."""

    OPTIONS: ClassVar[tuple[Option, ...]] = (Option("working_set", True, flag),)
    ACCOUNTS_IN_COST: ClassVar[bool] = True
    BY_TAG: ClassVar[bool] = True

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._tree: TenantShare | None = None
        """Accounts of the tenant tree; None without fairness between tenants."""
        if isinstance(context.fair_share, TenantShare):
            self._tree = context.fair_share
        self.by_leaf = self._tree is not None

    def client(self, application: Application) -> ClientId:
        """Return the application; with fairness between tenants the topmost node of its tenant."""
        if self._tree is not None:
            return application.leaf.partition(SEPARATOR)[0]
        if self.options.fairness == "tenant":
            return application.tenant
        return application.application_id

    def members_order(self, client: ClientId) -> LazyHeap:
        """Return the order below a topmost tenant: by key, and by tag inside a tenant."""
        if self._tree is None or self._tree.nodes.branches.get(client) is None:
            return self._leaf_order(client)
        return self._tree_order(self._tree, client)

    def key(self, client: ClientId, application: Application) -> Key:
        """Return (F, arrival sequence); between tenants F is the key of `tenant_share`.

        Applications beyond quota sort behind all others.
        """
        key = (self.fair_share.tag(application.application_id), application.sequence)
        return (inf, *key) if self._is_beyond_quota(application) else key

    def application_key(self, application: Application) -> Key:
        """Return an application's key in its tenant; unused without fairness between tenants."""
        tag = self.fair_share.tag_in_tenant(application.application_id)
        return (tag, application.sequence)

    def engine_priority(
        self, application: Application, inference: Inference, grant_sequence: int
    ) -> int:
        """Return the tag F as an integer priority, so that the engine uses the same order."""
        return self._rank_of_tag(application, self.fair_share.tag(application.application_id))

    def _rank_of_tag(self, application: Application, tag: VirtualTime) -> int:
        """Return a tag as an integer that sorts alike, behind all others if beyond quota."""
        rank = rank_preserving_integer(tag)
        return _RANKS_BEYOND_QUOTA + (rank >> 11) if self._is_beyond_quota(application) else rank

    def _is_beyond_quota(self, application: Application) -> bool:
        """Return whether an application is beyond quota, where another clock sets tags."""
        return application.is_deprioritised and self._tree is not None

    def _tree_order(self, tree: TenantShare, client: ClientId) -> TreeOrder:
        return TreeOrder(tree, client, self.context.application, self._leaf_order)

    def _leaf_order(self, tenant: ClientId) -> LazyHeap:
        return LazyHeap()


def rank_preserving_integer(value: float) -> int:
    """Map a non-negative float to a 63-bit integer: a < b if and only if map(a) < map(b).

    The bit pattern of a non-negative IEEE double rises with its value. Adding 0.0 removes the sign
    from -0.0, which equals 0.0 but has the highest bit set.

    Raises:
        ValueError: If the value is negative or not a number.
    """
    if not value >= 0:
        raise ValueError(f"a tag must be >= 0, got {value}")
    bits: int = struct.unpack(">q", struct.pack(">d", float(value) + 0.0))[0]
    return bits
