"""Common beginnings of prompts: their KV is held once on a replica with a prefix cache.

An ingress describes up to four beginnings of a prompt, each by a digest of all its tokens and by
its length in whole blocks. A beginning that two leases of a replica have is stored there once,
until the last of these leases ends: the engine evicts no block in use.

The beginnings on a replica form a tree: each node holds the tokens that follow those of its parent.
A lease has all nodes from the root to its longest beginning, so the beginnings shared by the most
leases are at the top.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from justitia_ray.units import LeaseId, Tokens

MAXIMUM_PREFIXES = 4
DIGEST_BYTES = 7
"""Bytes of a digest. A collision among 10,000 beginnings of prompts has a probability of 1e-9, and
affects sums of memory only.
"""
_LENGTH_BYTES = 3
_PACKED_BYTES = DIGEST_BYTES + _LENGTH_BYTES
LONGEST_PREFIX: Tokens = 2 ** (8 * _LENGTH_BYTES) - 1


class Prefix(NamedTuple):
    """A beginning of a prompt. Prefixes sort by their length."""

    tokens: Tokens
    """Length of the prefix in tokens: whole blocks of the engine."""
    digest: bytes
    """Digest of all tokens of the prefix, and of everything else that distinguishes blocks in the
    engine's cache.
    """


def pack_prefixes(prefixes: Iterable[Prefix]) -> bytes:
    """Encode the prefixes of a prompt as a submission carries them, ten bytes each."""
    return b"".join(
        prefix.digest + prefix.tokens.to_bytes(_LENGTH_BYTES, "big") for prefix in prefixes
    )


def read_prefixes(packed: bytes, prompt_tokens: Tokens) -> tuple[Prefix, ...]:
    """Return the prefixes of a prompt in a submission, each longer than the one before.

    Invalid ones are skipped; the prompt is then counted with fewer shared tokens.
    """
    found: list[Prefix] = []
    shorter = 0
    for at in range(0, min(len(packed), MAXIMUM_PREFIXES * _PACKED_BYTES), _PACKED_BYTES):
        one = packed[at : at + _PACKED_BYTES]
        tokens = int.from_bytes(one[DIGEST_BYTES:], "big")
        if len(one) == _PACKED_BYTES and shorter < tokens <= prompt_tokens:
            found.append(Prefix(tokens, one[:DIGEST_BYTES]))
            shorter = tokens
    return tuple(found)


@dataclass(slots=True, eq=False)
class Beginning:
    """A beginning of prompts that leases of a replica share: a node of a tree."""

    prefix: Prefix
    parent: "Beginning | None"
    leases: dict[LeaseId, None] = field(default_factory=dict)
    """Leases whose prompts have this beginning, in order of arrival."""
    missed: dict[LeaseId, None] = field(default_factory=dict)
    """Leases that did not find the whole beginning in the cache and have a copy of their own."""

    @property
    def own_tokens(self) -> Tokens:
        """Return the tokens that this beginning has beyond the next shorter one."""
        parent = self.parent
        return self.prefix.tokens - (parent.prefix.tokens if parent is not None else 0)

    @property
    def held_tokens(self) -> Tokens:
        """Return the KV tokens that this beginning uses, copies included.

        0 with one lease, which then counts it itself.
        """
        return self.own_tokens * max(1, len(self.missed)) if len(self.leases) > 1 else 0

    @property
    def first_lease(self) -> LeaseId:
        """Return the first lease with this beginning, to which its KV is attributed."""
        return next(iter(self.leases))


class Beginnings:
    """Beginnings of the prompts of one replica's leases."""

    def __init__(self) -> None:
        self._nodes: dict[Prefix, Beginning] = {}
        self._longest: dict[LeaseId, Beginning] = {}
        """Longest beginning of each lease that has beginnings."""
        self._found: dict[LeaseId, Tokens] = {}
        """Cached tokens that each lease found, once they are known."""
        self.shared: dict[LeaseId, Tokens] = {}
        """Tokens of a lease's prompt that another lease also has; leases that never shared are
        missing.
        """

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Beginning]:
        return iter(self._nodes.values())

    def longest(self, prefixes: tuple[Prefix, ...]) -> Beginning | None:
        """Return the longest of these beginnings that a lease has, or None."""
        nodes = self._nodes
        for prefix in reversed(prefixes):
            if prefix in nodes:
                return nodes[prefix]
        return None

    def path(self, lease_id: LeaseId) -> list[Beginning]:
        """Return the beginnings of a lease, the longest first."""
        return list(_path_to_root(self._longest.get(lease_id)))

    def join(self, lease_id: LeaseId, prefixes: tuple[Prefix, ...]) -> list[LeaseId]:
        """Add the beginnings of a new lease's prompt; it must have at least one.

        Called once per lease, before any other method for it. Return the leases whose `shared` has
        changed.
        """
        longest = self.longest(prefixes)
        for prefix in prefixes:
            if longest is None or prefix.tokens > longest.prefix.tokens:
                longest = self._nodes[prefix] = Beginning(prefix, longest)
            elif prefix not in self._nodes:
                self._insert_above(prefix, longest)
        assert longest is not None, "no beginnings"
        self._longest[lease_id] = longest
        affected = {lease_id: None}
        for node in _path_to_root(longest):
            node.leases[lease_id] = None
            if len(node.leases) == 2:
                affected |= node.leases
        return self._recount_shared_tokens(affected)

    def leave(self, lease_id: LeaseId) -> list[LeaseId]:
        """Remove a lease, and the beginnings that no other lease has.

        Return the leases whose `shared` has changed.
        """
        longest = self._longest.pop(lease_id, None)
        self._found.pop(lease_id, None)
        self.shared.pop(lease_id, None)
        affected: dict[LeaseId, None] = {}
        for node in _path_to_root(longest):
            del node.leases[lease_id]
            node.missed.pop(lease_id, None)
            if not node.leases:
                del self._nodes[node.prefix]
            elif len(node.leases) == 1:
                affected |= node.leases
        return self._recount_shared_tokens(affected)

    def note_found(self, lease_id: LeaseId, tokens: Tokens) -> bool:
        """Record how many cached tokens a lease found; return whether this was unknown."""
        if lease_id in self._found or lease_id not in self._longest:
            return False
        self._found[lease_id] = tokens
        for node in _path_to_root(self._longest[lease_id]):
            if node.prefix.tokens > tokens:
                node.missed[lease_id] = None
        return True

    def _insert_above(self, prefix: Prefix, longer: Beginning) -> None:
        """Insert a beginning above a longer one, whose leases all have both."""
        below = longer
        while below.parent is not None and below.parent.prefix.tokens > prefix.tokens:
            below = below.parent
        above = below.parent
        if prefix.tokens in (below.prefix.tokens, 0 if above is None else above.prefix.tokens):
            return  # two digests of equal length collide
        node = self._nodes[prefix] = Beginning(prefix, above, dict(below.leases))
        node.missed = {
            name: None
            for name in below.missed
            if self._found.get(name, prefix.tokens) < prefix.tokens
        }
        below.parent = node

    def _recount_shared_tokens(self, leases: Iterable[LeaseId]) -> list[LeaseId]:
        """Recompute which tokens these leases share; return the leases with a change."""
        changed: list[LeaseId] = []
        for lease_id in leases:
            if (shared := self._tokens_shared_on_path(lease_id)) != self.shared.get(lease_id, 0):
                changed.append(lease_id)
                self.shared[lease_id] = shared
        return changed

    def _tokens_shared_on_path(self, lease_id: LeaseId) -> Tokens:
        node: Beginning | None = self._longest[lease_id]
        while node is not None:
            if len(node.leases) > 1:
                return node.prefix.tokens
            node = node.parent
        return 0


def _path_to_root(node: Beginning | None) -> Iterator[Beginning]:
    while node is not None:
        yield node
        node = node.parent
