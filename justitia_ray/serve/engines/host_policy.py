"""Eviction policy of vLLM's host memory, which evicts contexts that may be continued last.

vLLM's `OffloadingConnector` copies each computed block to host memory, in *chunks*, and loads it
when a prompt finds it there and not on the GPU. This policy replaces the connector's LRU order.
Chunks belong to the application whose inference used them last (`hold_parameters`), and are evicted
in this order:

1. chunks of single calls and of applications that have ended, the least recently used first;
2. contexts whose hold has ended, the longest idle first: after the time for which a context of its
   class pays, the application is unlikely to return soon;
3. contexts that are held, the longest idle first.

Within a context the last tokens are evicted first. The interface, `CachePolicy`, is experimental;
`tests/conformance/test_host_policy.py` checks a release.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkStatus, order_request_keys

from justitia_ray.serve.engines.hold_parameters import read_hold
from justitia_ray.units import ApplicationId, Seconds

_NOBODY: ApplicationId = ""
"""Application id of KV chunks in host memory that no later prompt is expected to contain."""


class _ApplicationChunks:
    """KV chunks of one application in host memory, in the order of eviction."""

    __slots__ = ("chunks", "ends_at", "used")

    def __init__(self) -> None:
        self.chunks: dict[Any, None] = {}
        self.ends_at: Seconds = 0.0
        """Time in seconds until which the application's context is held in host memory."""
        self.used = 0
        """Rank of the application's last use of its KV chunks; larger is later."""


class HostContexts(CachePolicy):
    """Eviction policy of vLLM for KV chunks in host memory, which keeps held contexts longest.

    Args:
        cache_capacity: Number of chunks.
        clock: Returns the current time in seconds.
    """

    def __init__(self, cache_capacity: int, clock: Callable[[], Seconds] = time.monotonic) -> None:
        super().__init__(cache_capacity)
        self._clock = clock
        self._chunks: dict[Any, ChunkStatus] = {}
        self._owners: dict[Any, ApplicationId] = {}
        self._contexts: dict[ApplicationId, _ApplicationChunks] = {_NOBODY: _ApplicationChunks()}
        self._pinned: set[Any] = set()
        """KV chunks that are being written or read."""
        self._uses = 0

    def get(self, key: Any) -> ChunkStatus | None:
        return self._chunks.get(key)

    def insert(self, key: Any, chunk: ChunkStatus, req_context: Any = None) -> None:
        """Add a KV chunk to the host memory; its application is known when the request ends.

        vLLM passes the request only from 0.33 on.
        """
        self._chunks[key] = chunk
        self._assign_chunk(key, _NOBODY)
        if chunk.ref_cnt != 0:
            self._pinned.add(key)

    def remove(self, key: Any) -> None:
        """Remove a KV chunk that could not be stored."""
        del self._chunks[key]
        self._pinned.discard(key)
        self._unassign_chunk(key)

    def touch(self, keys: Iterable[Any], req_context: Any) -> None:
        """Mark KV chunks as used by a request; the first key is the first chunk of the prompt."""
        self._note_use(list(keys), req_context)

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[Any]],
        insertion_only_keys: set[Any],
        reused_keys: set[Any],
        req_context: Any,
    ) -> None:
        """Assign all KV chunks of a finished request to its application."""
        self._note_use(order_request_keys(key_groups, req_context), req_context)

    def evict(self, n: int, protected: set[Any]) -> list[tuple[Any, ChunkStatus]] | None:
        """Evict exactly n unprotected KV chunks from host memory; return None if fewer exist."""
        found: list[Any] = []
        for context in self._in_eviction_order():
            if len(found) == n:
                break
            for key in context.chunks:
                if len(found) == n:
                    break
                if key not in self._pinned and key not in protected:
                    found.append(key)
        if len(found) < n:
            return None
        evicted = [(key, self._chunks.pop(key)) for key in found]
        for key in found:
            self._unassign_chunk(key)
        return evicted

    def clear(self) -> None:
        self._chunks.clear()
        self._owners.clear()
        self._pinned.clear()
        self._contexts = {_NOBODY: _ApplicationChunks()}

    def mark_evictable(self, key: Any) -> None:
        """Allow the eviction of a KV chunk, which is no longer being written or read."""
        self._pinned.discard(key)

    def mark_non_evictable(self, key: Any) -> None:
        """Forbid the eviction of a KV chunk that is being read."""
        self._pinned.add(key)

    def _note_use(self, keys: Sequence[Any], req_context: Any) -> None:
        hold = read_hold(req_context.kv_transfer_params)
        owner = _NOBODY
        if hold is not None:
            for ended in hold.ended:
                self._end_application(ended)
            if hold.for_s > 0:
                owner = hold.application_id
        for key in reversed(keys):
            if key in self._chunks:
                self._assign_chunk(key, owner)
        context = self._contexts.get(owner)
        if hold is not None and context is not None:
            self._uses += 1
            context.used, context.ends_at = self._uses, self._clock() + hold.for_s

    def _end_application(self, application_id: ApplicationId) -> None:
        """Assign an ended application's KV chunks to no application, so that they go first."""
        if application_id and application_id in self._contexts:
            for key in list(self._contexts[application_id].chunks):
                self._assign_chunk(key, _NOBODY)

    def _in_eviction_order(self) -> list[_ApplicationChunks]:
        now = self._clock()
        own = [context for name, context in self._contexts.items() if name != _NOBODY]
        own.sort(key=lambda context: (context.ends_at > now, context.used))
        return [self._contexts[_NOBODY], *own]

    def _assign_chunk(self, key: Any, owner: ApplicationId) -> None:
        """Assign a KV chunk to an application, as the last of its chunks to be evicted."""
        self._unassign_chunk(key)
        self._owners[key] = owner
        self._contexts.setdefault(owner, _ApplicationChunks()).chunks[key] = None

    def _unassign_chunk(self, key: Any) -> None:
        owner = self._owners.pop(key, None)
        if owner is None:
            return
        context = self._contexts[owner]
        del context.chunks[key]
        if not context.chunks and owner != _NOBODY:
            del self._contexts[owner]
