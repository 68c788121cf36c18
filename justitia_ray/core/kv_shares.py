"""Shares of the KV memory of all replicas, by node of the tenant tree and by service tier.

A node holds the expected peak KV of the leases below it. It gets at most the fraction `most` of the
total, but a node that holds nothing may always have one inference. Of its guaranteed share a node
lends a part: other nodes may use the lent part; the rest is reserved while the node holds less.
Running inferences are never stopped for a share, so while the lent part is in use, the node has
only its reserved part at once.

Tiers have the same shares, each over all tenants together, and both apply: an inference must leave
free what other nodes reserve, unless it is within the part that its own node reserves, and in
addition what other tiers reserve, unless it is within the part of its own tier. A tier's memory
may go to any tenant, and a tenant's to any tier; so memory reserved for a node does not count as
reserved for a tier.
"""

from collections.abc import Mapping

from justitia_ray.core.tenants import (
    DEFAULT_TIER,
    SEPARATOR,
    TIERS,
    KvShare,
    TenantTree,
    Tier,
    ancestors,
)
from justitia_ray.units import ClientId, LeaseId, Tokens

_NOTHING = KvShare()


class KvShares:
    """KV memory used by each tenant and each service tier, compared with their shares."""

    def __init__(self, tree: TenantTree, tiers: Mapping[str, Tier] = TIERS) -> None:
        self._tree = tree
        self._leases: dict[LeaseId, tuple[ClientId, Tokens, str]] = {}
        self._of_tiers: dict[str, KvShare] = {}
        """Share of the KV memory of each service tier; tiers without a share are missing."""
        self._held_by_tier: dict[str, Tokens] = {}
        self._held: dict[ClientId, Tokens] = {}
        """KV tokens that each tenant uses; the root is the empty path."""
        self._keepers: dict[ClientId, dict[ClientId, None]] = {}
        """Child tenants by parent, as far as the child or a descendant reserves KV memory."""
        self.limits_nodes = False
        """Whether the configuration gives any tenant a share of the KV memory."""
        self.limits_tiers = False
        """Whether the configuration gives any service tier a share of the KV memory."""
        self.describe(tree, tiers)

    def describe(self, tree: TenantTree, tiers: Mapping[str, Tier] = TIERS) -> None:
        """Apply new KV shares of tenants and service tiers to the memory that is in use now."""
        self._tree = tree
        self._of_tiers = {n: t.kv_share for n, t in tiers.items() if t.kv_share != _NOTHING}
        self.limits_tiers = bool(self._of_tiers)
        self.limits_nodes = any(node.kv_share != _NOTHING for node in tree.described.values())
        self._keepers = {}
        for path, node in tree.described.items():
            if _reserved_fraction(node.kv_share) > 0:
                for one in ancestors(path):
                    parent = one.rpartition(SEPARATOR)[0]
                    self._keepers.setdefault(parent, {})[one] = None

    def held(self, path: ClientId) -> Tokens:
        """Return the KV memory that a tenant uses.

        For the empty path all KV that any lease holds.
        """
        return self._held.get(path, 0)

    def nodes(self) -> list[ClientId]:
        return [path for path in self._held if path]

    def held_by_tier(self, tier: str) -> Tokens:
        return self._held_by_tier.get(tier, 0)

    def hold(
        self, lease_id: LeaseId, tenant: ClientId, tokens: Tokens, tier: str = DEFAULT_TIER
    ) -> None:
        """Count a lease with the KV memory that it is expected to need."""
        self._leases[lease_id] = tenant, tokens, tier
        self._held_by_tier[tier] = self._held_by_tier.get(tier, 0) + tokens
        for path in ("", *ancestors(tenant)):
            self._held[path] = self._held.get(path, 0) + tokens

    def take_over_memory(self, lease_id: LeaseId, tokens: Tokens) -> None:
        """Add the shared KV memory that a lease takes over from an ended lease."""
        tenant, before, tier = self._leases[lease_id]
        self.release(lease_id)
        self.hold(lease_id, tenant, before + tokens, tier)

    def release(self, lease_id: LeaseId) -> None:
        tenant, tokens, tier = self._leases.pop(lease_id)
        self._held_by_tier[tier] -= tokens
        for path in ("", *ancestors(tenant)):
            left = self._held[path] - tokens
            if left:
                self._held[path] = left
            else:
                del self._held[path]

    def tier_refuses(self, tier: str, tokens: Tokens, total: Tokens) -> bool:
        """Return whether a service tier may get no more KV memory now, for any tenant.

        Args:
            tier: The tier of an inference.
            tokens: Largest KV that the inference is expected to hold.
            total: KV of all replicas.
        """
        share, held = self._of_tiers.get(tier, _NOTHING), self.held_by_tier(tier)
        if held and held + tokens > share.most * total:
            return True
        kept = self._kv_reserved_by_other_tiers(tier, tokens, total)
        return kept > 0 and self.held("") + tokens > total - kept

    def refuses(
        self, tenant: ClientId, tokens: Tokens, total: Tokens, tier: str = DEFAULT_TIER
    ) -> ClientId | None:
        """Return the tenant that may get no more KV memory now, or None.

        O(depth + nodes that reserve memory).

        Args:
            tenant: The tenant of an inference.
            tokens: Largest KV that the inference is expected to hold.
            total: KV of all replicas.
            tier: The tier of the inference, which `tier_refuses` has allowed.
        """
        within_its_own = False
        for name, node in self._tree.nodes(tenant):
            share, held = node.kv_share, self.held(name)
            if held and held + tokens > share.most * total:
                return name
            within_its_own = within_its_own or held + tokens <= _reserved_fraction(share) * total
        if within_its_own or not self._keepers:
            return None
        path = ancestors(tenant)
        kept = kept_at_most = self._kv_reserved_by_other_tiers(tier, tokens, total)
        of_others = self.held("")
        for parent, child in zip(("", *path), (*path, None), strict=True):
            for keeper in self._keepers.get(parent, ()):
                if keeper != child:
                    kept += self._kv_reserved_below(keeper, total)
                    kept_at_most += self._most_kv_reserved_below(keeper, total)
                    of_others -= self.held(keeper)
        can_wait = (
            of_others > 0 or tokens <= total - kept_at_most
        )  # without other leases an inference would wait for ever
        if can_wait and self.held("") + tokens > total - kept:
            return next((one for one in path if one not in self._keepers), tenant)
        return None

    def _kv_reserved_by_other_tiers(self, tier: str, tokens: Tokens, total: Tokens) -> float:
        """Return the KV memory that other service tiers reserve against this tier now.

        0 for an inference within the part that its own tier reserves. Also 0 for an inference
        larger than the unreserved memory while only tiers with reservations hold KV: otherwise the
        inference would wait for ever.
        """
        own = self._of_tiers.get(tier, _NOTHING)
        reserved = _reserved_fraction(own) * total
        if not self._of_tiers or self.held_by_tier(tier) + tokens <= reserved:
            return 0.0
        kept, kept_at_most, of_others = 0.0, 0.0, self.held("")
        for name, share in self._of_tiers.items():
            if name != tier and _reserved_fraction(share) > 0:
                held, at_most = self.held_by_tier(name), _reserved_fraction(share) * total
                kept += max(0.0, at_most - held)
                kept_at_most += at_most
                of_others -= held
        return kept if of_others or tokens <= total - kept_at_most else 0.0

    def _kv_reserved_below(self, path: ClientId, total: Tokens) -> float:
        """Return the KV memory that a tenant and its descendants reserve against others now."""
        own = _reserved_fraction(self._tree.node(path).kv_share) * total - self.held(path)
        below = sum(self._kv_reserved_below(child, total) for child in self._keepers.get(path, ()))
        return max(0.0, own, below)

    def _most_kv_reserved_below(self, path: ClientId, total: Tokens) -> float:
        """Return the most KV memory that a tenant and its descendants may reserve."""
        own = _reserved_fraction(self._tree.node(path).kv_share) * total
        return max(
            own,
            sum(self._most_kv_reserved_below(one, total) for one in self._keepers.get(path, ())),
        )


def _reserved_fraction(share: KvShare) -> float:
    """Return the fraction of the memory that a tenant reserves when it uses nothing."""
    return share.guaranteed * (1 - share.lends)
