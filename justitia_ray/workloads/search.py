"""A local search engine over supplied passages (BM25), in place of Wikipedia's."""

import asyncio
from collections.abc import Sequence

from justitia_ray.errors import ConfigError

_LEAST_SCORE = 1e-9
"""A passage that shares no word with a query scores nothing."""


class PassageSearch:
    """Passages, ranked by BM25 for each query.

    Args:
        passages: What is searched; a title ahead of each helps.

    Raises:
        ConfigError: If there are no passages, or bm25s is not installed.
    """

    def __init__(self, passages: Sequence[str]) -> None:
        try:
            import bm25s
        except ImportError as error:
            raise ConfigError(
                "searching passages needs bm25s: pip install 'justitia-ray[workloads]'"
            ) from error
        if not passages:
            raise ConfigError("passages must hold at least one text, got none")
        self._tokenize = bm25s.tokenize
        self._passages = list(passages)
        self._index = bm25s.BM25()
        self._index.index(bm25s.tokenize(self._passages, show_progress=False), show_progress=False)

    async def best(self, query: str, count: int = 1) -> list[str]:
        """Return up to `count` passages that share a word with the query, the best first."""
        return await asyncio.to_thread(self._best, query, count)

    def _best(self, query: str, count: int) -> list[str]:
        found, scores = self._index.retrieve(
            self._tokenize([query], show_progress=False),
            k=min(count, len(self._passages)),
            show_progress=False,
        )
        return [
            self._passages[index]
            for index, score in zip(found[0], scores[0], strict=True)
            if score > _LEAST_SCORE
        ]
