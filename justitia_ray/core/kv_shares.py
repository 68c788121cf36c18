"""Shares of the KV memory by node of the tree of tenants, over all replicas of the model together.

A node holds what the leases below it are expected to hold at their fullest. At most `most` of all
is given to it, but for one inference if it holds nothing. Of a node's guaranteed share, the part
that it does not lend is kept free from all that is not below it while the node holds less; what it
lends is anybody's. What runs is never stopped for it.
"""

from justitia_ray.core.tenants import SEPARATOR, KvShare, TenantTree, ancestors
from justitia_ray.units import ClientId, LeaseId, Tokens

_NOTHING = KvShare()


class KvShares:
    """KV memory held by each node, and the nodes that may be given more."""

    def __init__(self, tree: TenantTree) -> None:
        """Begin with nothing held.

        Args:
            tree: The tree in force.
        """
        self._tree = tree
        self._leases: dict[LeaseId, tuple[ClientId, Tokens]] = {}
        self._held: dict[ClientId, Tokens] = {}
        """KV by node; the root is the empty path."""
        self._keepers: dict[ClientId, dict[ClientId, None]] = {}
        """Children of each node that keep something, or below which somebody does."""
        self.describe(tree)

    @property
    def limit(self) -> bool:
        """Whether any share is described."""
        return self._limits

    def describe(self, tree: TenantTree) -> None:
        """Use the shares of another tree; what is held stays."""
        self._tree = tree
        self._limits = any(node.kv_share != _NOTHING for node in tree.described.values())
        self._keepers = {}
        for path, node in tree.described.items():
            if _kept(node.kv_share) > 0:
                for one in ancestors(path):
                    parent = one.rpartition(SEPARATOR)[0]
                    self._keepers.setdefault(parent, {})[one] = None

    def held(self, path: ClientId) -> Tokens:
        """Return the KV that a node holds; of the empty path: all that is held."""
        return self._held.get(path, 0)

    def nodes(self) -> list[ClientId]:
        """Return the nodes that hold something."""
        return [path for path in self._held if path]

    def hold(self, lease_id: LeaseId, tenant: ClientId, tokens: Tokens) -> None:
        """Note a lease of a tenant, and the KV that it is expected to hold."""
        self._leases[lease_id] = tenant, tokens
        for path in ("", *ancestors(tenant)):
            self._held[path] = self._held.get(path, 0) + tokens

    def release(self, lease_id: LeaseId) -> None:
        """Note that a lease is no more."""
        tenant, tokens = self._leases.pop(lease_id)
        for path in ("", *ancestors(tenant)):
            left = self._held[path] - tokens
            if left:
                self._held[path] = left
            else:
                del self._held[path]

    def refuses(self, tenant: ClientId, tokens: Tokens, total: Tokens) -> ClientId | None:
        """Return the node that must not be given more now, None if there is none.

        O(depth + nodes that keep something).

        Args:
            tenant: The tenant of an inference.
            tokens: KV that the inference is expected to hold at its fullest.
            total: KV of all replicas.
        """
        within_its_own = False
        for name, node in self._tree.nodes(tenant):
            share, held = node.kv_share, self.held(name)
            if held and held + tokens > share.most * total:
                return name
            within_its_own = within_its_own or held + tokens <= share.guaranteed * total
        if within_its_own or not self._keepers:
            return None
        path = ancestors(tenant)
        kept: float = 0
        of_others = self.held("")
        for parent, child in zip(("", *path), (*path, None), strict=True):
            for keeper in self._keepers.get(parent, ()):
                if keeper != child:
                    kept += self._kept_below(keeper, total)
                    of_others -= self.held(keeper)
        if of_others and self.held("") + tokens > total - kept:
            return next((one for one in path if one not in self._keepers), tenant)
        return None

    def _kept_below(self, path: ClientId, total: Tokens) -> float:
        """Return the KV that a node, or those below it, keep from others now."""
        own = _kept(self._tree.node(path).kv_share) * total - self.held(path)
        below = sum(self._kept_below(child, total) for child in self._keepers.get(path, ()))
        return max(0.0, own, below)


def _kept(share: KvShare) -> float:
    """Return the part of the memory that a node keeps from others while it does not use it."""
    return share.guaranteed * (1 - share.lends)
