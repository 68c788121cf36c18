"""Beginnings that prompts have in common: their KV is held once on a replica with a prefix cache.

An ingress names up to four beginnings of a prompt, each by a digest of all its tokens and by its
length in whole blocks. What is named by two leases of a replica is one beginning there, and stays
until the last lease that has it ends: the engine evicts no block in use.

The beginnings on a replica are a tree: each holds the tokens after the one that it extends. A lease
has all from the root to its longest, so that those shared by the most leases are above.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from justitia_ray.units import LeaseId, Tokens

MAXIMUM_PREFIXES = 4
DIGEST_BYTES = 7
"""A collision shows in sums of memory only. Among 10,000 beginnings it has a chance of 1e-9."""
_LENGTH_BYTES = 3
_PACKED_BYTES = DIGEST_BYTES + _LENGTH_BYTES
LONGEST_PREFIX: Tokens = 2 ** (8 * _LENGTH_BYTES) - 1


class Prefix(NamedTuple):
    """A beginning of a prompt. Sorts by its length."""

    tokens: Tokens
    """Length in tokens: whole blocks of the engine."""
    digest: bytes
    """Digest of all its tokens and of what else tells blocks apart in the engine's cache."""


def pack_prefixes(prefixes: Iterable[Prefix]) -> bytes:
    """Return beginnings as a submission carries them: ten bytes each."""
    return b"".join(
        prefix.digest + prefix.tokens.to_bytes(_LENGTH_BYTES, "big") for prefix in prefixes
    )


def read_prefixes(packed: bytes, prompt_tokens: Tokens) -> tuple[Prefix, ...]:
    """Return the beginnings of a prompt that a submission carries, each longer than the last.

    Those that are no such beginning are left out: then more of the prompt is counted.
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
    """A beginning that leases of one replica have; a node of their tree."""

    prefix: Prefix
    parent: "Beginning | None"
    leases: dict[LeaseId, None] = field(default_factory=dict)
    """The leases that have it, in the order in which they came."""
    missed: dict[LeaseId, None] = field(default_factory=dict)
    """Leases that did not find all of the prefix in the cache: each has its own copy."""

    @property
    def own_tokens(self) -> Tokens:
        """Tokens of this prefix beyond its parent's."""
        parent = self.parent
        return self.prefix.tokens - (parent.prefix.tokens if parent is not None else 0)

    @property
    def held_tokens(self) -> Tokens:
        """KV that it holds apart from its leases; 0 with one lease, whose own it then is."""
        return self.own_tokens * max(1, len(self.missed)) if len(self.leases) > 1 else 0

    @property
    def bearer(self) -> LeaseId:
        """The lease that it counts for where memory is shared out: the first."""
        return next(iter(self.leases))


class Beginnings:
    """The beginnings of the leases of one replica."""

    def __init__(self) -> None:
        self._nodes: dict[Prefix, Beginning] = {}
        self._longest: dict[LeaseId, Beginning] = {}
        """The longest beginning of each lease that has any."""
        self._found: dict[LeaseId, Tokens] = {}
        """Tokens that leases found in the cache, once that is known."""
        self.shared: dict[LeaseId, Tokens] = {}
        """Tokens of a lease's prompt that another has, too; none of a lease that never shared."""

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Beginning]:
        return iter(self._nodes.values())

    def longest(self, prefixes: tuple[Prefix, ...]) -> Beginning | None:
        """Return the longest of some beginnings that a lease has, None if there is none."""
        nodes = self._nodes
        for prefix in reversed(prefixes):
            if prefix in nodes:
                return nodes[prefix]
        return None

    def path(self, lease_id: LeaseId) -> list[Beginning]:
        """Return the beginnings of a lease, the longest first."""
        return list(_up(self._longest.get(lease_id)))

    def join(self, lease_id: LeaseId, prefixes: tuple[Prefix, ...]) -> list[LeaseId]:
        """Let a lease have these beginnings, at least one; once, before anything else of the lease.

        Return the leases of which `shared` has changed.
        """
        longest = self.longest(prefixes)
        for prefix in prefixes:
            if longest is None or prefix.tokens > longest.prefix.tokens:
                longest = self._nodes[prefix] = Beginning(prefix, longest)
            elif prefix not in self._nodes:
                self._insert(prefix, longest)
        assert longest is not None, "no beginnings"
        self._longest[lease_id] = longest
        affected = {lease_id: None}
        for node in _up(longest):
            node.leases[lease_id] = None
            if len(node.leases) == 2:  # the other one had it alone
                affected |= node.leases
        return self._share_anew(affected)

    def leave(self, lease_id: LeaseId) -> list[LeaseId]:
        """Forget a lease, and beginnings that no other has.

        Return the leases of which `shared` has changed.
        """
        longest = self._longest.pop(lease_id, None)
        self._found.pop(lease_id, None)
        self.shared.pop(lease_id, None)
        affected: dict[LeaseId, None] = {}
        for node in _up(longest):
            del node.leases[lease_id]
            node.missed.pop(lease_id, None)
            if not node.leases:
                del self._nodes[node.prefix]
            elif len(node.leases) == 1:
                affected |= node.leases
        return self._share_anew(affected)

    def note_found(self, lease_id: LeaseId, tokens: Tokens) -> bool:
        """Note what a lease found in the cache; return whether that was not known before."""
        if lease_id in self._found or lease_id not in self._longest:
            return False
        self._found[lease_id] = tokens
        for node in _up(self._longest[lease_id]):
            if node.prefix.tokens > tokens:
                node.missed[lease_id] = None
        return True

    def _insert(self, prefix: Prefix, longer: Beginning) -> None:
        """Put a beginning between two of a longer one's path, as all that have that have it."""
        below = longer
        while below.parent is not None and below.parent.prefix.tokens > prefix.tokens:
            below = below.parent
        above = below.parent
        if prefix.tokens in (below.prefix.tokens, 0 if above is None else above.prefix.tokens):
            return  # two digests of one beginning: a collision
        node = self._nodes[prefix] = Beginning(prefix, above, dict(below.leases))
        node.missed = {
            name: None
            for name in below.missed
            if self._found.get(name, prefix.tokens) < prefix.tokens
        }
        below.parent = node

    def _share_anew(self, leases: Iterable[LeaseId]) -> list[LeaseId]:
        """Say anew what some leases share; return those of which that has changed."""
        changed: list[LeaseId] = []
        for lease_id in leases:
            if (shared := self._shared_on(lease_id)) != self.shared.get(lease_id, 0):
                changed.append(lease_id)
                self.shared[lease_id] = shared
        return changed

    def _shared_on(self, lease_id: LeaseId) -> Tokens:
        node: Beginning | None = self._longest[lease_id]
        while node is not None:
            if len(node.leases) > 1:
                return node.prefix.tokens
            node = node.parent
        return 0


def _up(node: Beginning | None) -> Iterator[Beginning]:
    while node is not None:
        yield node
        node = node.parent
