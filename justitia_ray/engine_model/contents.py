"""The content of sequences, block by block, as spans of chains.

vLLM identifies a block by a hash of its tokens and all earlier tokens. Here a *chain* stands for a
series of consecutive blocks, and a block is named by its chain and its position in the sequence. So
a context of 100,000 tokens that was only ever appended to is one span.
"""

from collections.abc import Hashable, Iterable, Iterator, MutableMapping, Sequence
from typing import NamedTuple, Protocol
from weakref import WeakValueDictionary

from justitia_ray.units import Tokens


class Span(NamedTuple):
    """Consecutive KV blocks of one chain; positions count blocks from the sequence's start."""

    chain: Hashable
    """Id of the chain. Blocks at the same position of a chain have equal tokens, and equal tokens
    before them.
    """
    start: int
    stop: int


class Content(Protocol):
    """Tokens of a sequence, prompt and output, from which the keys of its KV blocks follow."""

    def spans(self, start: int, stop: int) -> Iterable[Span]:
        """Return the full KV blocks from `start` to before `stop`, as spans of chains."""


class ContentTree:
    """Assigns chains of KV blocks to token sequences; sequences with equal prefixes share them.

    Chains are kept while a content or a cache refers to them.
    """

    def __init__(self, block_size: Tokens) -> None:
        self.block_size = block_size
        self._roots: WeakValueDictionary[Hashable, _BlockChain] = WeakValueDictionary()

    def content(self, tokens: Sequence[Hashable], apart: Hashable = None) -> "TokenContent":
        """Return the content of a sequence with these tokens.

        Args:
            tokens: The tokens of the sequence so far.
            apart: Key that separates equal tokens: cache salt and LoRA adapter.
        """
        root = self._roots.get(apart)
        if root is None:
            root = self._roots[apart] = _BlockChain(0, None)
        content = TokenContent(self.block_size, root)
        content.append(tokens)
        return content


class _BlockChain:
    __slots__ = ("__weakref__", "blocks", "children", "parent", "start")

    def __init__(self, start: int, parent: "_BlockChain | None") -> None:
        self.start = start
        self.parent = parent  # prevents a second parent object
        self.blocks: list[Hashable] = []
        self.children: MutableMapping[tuple[int, Hashable], _BlockChain] | None = None

    def child(self, position: int, block: Hashable) -> "_BlockChain":
        """Return the chain that continues this one with another block at a position."""
        if self.children is None:
            self.children = WeakValueDictionary()
        found = self.children.get((position, block))
        if found is None:
            found = self.children[position, block] = _BlockChain(position, self)
            found.blocks.append(block)
        return found


class TokenContent:
    def __init__(self, block_size: Tokens, root: _BlockChain) -> None:
        self._block_size = block_size
        self._path: list[tuple[_BlockChain, int]] = []
        """Earlier chains of the sequence, each with the position at which the sequence left it."""
        self._chain = root
        self._stop = 0
        self._rest: list[Hashable] = []
        """Tokens of the sequence's last block, which is not full yet."""

    def append(self, tokens: Iterable[Hashable]) -> None:
        rest, size = self._rest, self._block_size
        rest.extend(tokens)
        full = len(rest) // size * size
        if not full:
            return
        if size == 1:
            blocks, self._rest = rest, []
        else:
            blocks = [tuple(rest[i : i + size]) for i in range(0, full, size)]
            self._rest = rest[full:]
        self._add_blocks(blocks)

    def spans(self, start: int, stop: int) -> Iterator[Span]:
        for chain, left_at in (*self._path, (self._chain, self._stop)):
            if start >= stop:
                return
            if left_at > start:
                yield Span(chain, start, min(left_at, stop))
                start = left_at

    def _add_blocks(self, blocks: list[Hashable]) -> None:
        while blocks:
            chain = self._chain
            index = self._stop - chain.start
            known = chain.blocks[index : index + len(blocks)]
            same = _common_prefix(known, blocks)
            self._stop += same
            blocks = blocks[same:]
            if not blocks:
                return
            if same == len(known):  # blocks beyond the end of a chain extend it
                chain.blocks += blocks
                self._stop += len(blocks)
                return
            self._path.append((chain, self._stop))
            self._chain = chain.child(self._stop, blocks[0])


def _common_prefix(known: Sequence[Hashable], blocks: Sequence[Hashable]) -> int:
    """Return the number of equal blocks at the start of two sequences of blocks."""
    if known == blocks[: len(known)]:
        return len(known)
    return next(i for i, (a, b) in enumerate(zip(known, blocks, strict=False)) if a != b)
