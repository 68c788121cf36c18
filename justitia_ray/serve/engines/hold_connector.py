"""vLLM KV connector that holds contexts (`held_contexts`). It transfers no KV.

Without a fork of vLLM, the order of evictions can only be changed from a connector. The connector
works in the engine's scheduler only. vLLM creates one in each worker as well; there it does
nothing, and has no metadata, so that attention layers skip it.

An inference names its application and the time of the hold in `SamplingParams.extra_args`
(`hold_parameters`). Releases travel with the next inference, which is soon enough: without
inferences nothing is evicted.

vLLM calls this interface experimental; `tests/conformance/test_context_holds.py` checks a release.
"""

import time
from collections.abc import Iterator
from itertools import chain
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

from justitia_ray.serve.engines.held_contexts import HeldContexts
from justitia_ray.serve.engines.hold_parameters import read_hold
from justitia_ray.serve.engines.hold_reports import HoldReports

_SAFE_FOR_HYBRID = "supports_divergent_local_hybrid_hits"
"""Attribute by which vLLM's connectors declare support of hybrid models; absent in 0.26
(vllm#50344).
"""


class _NoTransfers(KVConnectorMetadata):
    """Metadata of an engine step for vLLM's KV connectors, which here transfer nothing."""


class _HoldStats(KVConnectorStats):
    """Report of held contexts, which vLLM sends to the replica's process with its own statistics.

    vLLM also writes a connector's statistics into its log, as `KV Transfer metrics`. For that log,
    `build_kv_connector_stats` returns empty ones.
    """

    def is_empty(self) -> bool:
        return not self.data

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        return other


class ContextHoldConnector(KVConnectorBase_V1, SupportsHMA):
    """KV connector for vLLM that moves held contexts to the end of the eviction order."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        if vllm_config.model_config.is_hybrid and not hasattr(KVConnectorBase_V1, _SAFE_FOR_HYBRID):
            raise ValueError(
                "engine.hold_contexts: this release of vLLM resumes a model with recurrent layers"
                " from a wrong state beside any KV connector (vllm#53505); vLLM 0.32 does not"
            )
        super().__init__(vllm_config, role, kv_cache_config)
        self._block_size = vllm_config.cache_config.block_size
        self._pool: Any = None
        self._held: HeldContexts | None = None
        """Held contexts of the engine; None in a worker process."""
        self._reports: HoldReports | None = None
        self._metadata = _NoTransfers()

    @property
    def requires_kv_delivery(self) -> bool:
        """Return False: no KV is transferred, so a preempted inference has nothing to deliver."""
        return False

    # --- in the scheduler

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Create the held contexts for vLLM's block pool; called by vLLM at its start."""
        self._pool = gpu_block_pool
        tokens = self._vllm_config.scheduler_config.max_num_batched_tokens
        self._held = HeldContexts(gpu_block_pool, tokens // self._block_size)
        self._reports = HoldReports(self._held, self._block_size, time.monotonic)

    def on_new_request(self, request: Any) -> None:
        """Stop holding the contexts of the ended applications that a new request lists."""
        given = read_hold(request.kv_transfer_params)
        if given is not None and self._held is not None:
            for application_id in given.ended:
                self._held.release(application_id)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        """Hold the context of a finished inference; vLLM frees its blocks afterwards."""
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, None]:
        """Hold the context of a finished inference in a model with several groups of KV layers."""
        given = read_hold(request.kv_transfer_params)
        if given is not None and given.for_s > 0 and self._held is not None:
            blocks = (self._pool.blocks[block_id] for block_id in chain(*block_ids))
            self._held.hold(given.application_id, blocks, time.monotonic() + given.for_s)
        return False, None

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Count the KV blocks given to inferences in an engine step; move held blocks if due."""
        if self._held:
            self._held.allocated(_new_blocks(scheduler_output), time.monotonic())
        return self._metadata

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """Return a report of the held contexts if one is due; called after each iteration."""
        if self._reports is None:
            return None
        all_blocks = self._pool.num_gpu_blocks - 1  # without the null block
        is_idle = self._pool.get_num_free_blocks() == all_blocks
        report = self._reports.next_report(is_idle=is_idle)
        return None if report is None else _HoldStats(data=report)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats:
        """Return empty statistics for vLLM's log."""
        return _HoldStats()

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """Return that no tokens can be loaded; vLLM asks this before it allocates blocks."""
        if self._held:
            missing = request.num_tokens - num_computed_tokens
            self._held.make_room(-(-missing // self._block_size), time.monotonic())
        return 0, False

    # vLLM's interface requires this method, but no KV is transferred.
    def update_state_after_alloc(
        self, request: Any, blocks: Any, num_external_tokens: int
    ) -> None: ...

    # --- in a worker

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Ignore the metadata, with which every attention layer would call the connector twice."""

    # vLLM's interface requires these methods, but no KV is transferred.
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None: ...

    def wait_for_save(self) -> None: ...


def _new_blocks(scheduler_output: Any) -> Iterator[int]:
    """Yield the ids of the KV blocks that inferences got in an iteration, cached blocks too."""
    for request in scheduler_output.scheduled_new_reqs:
        yield from chain(*request.block_ids)
    for block_ids in scheduler_output.scheduled_cached_reqs.new_block_ids:
        if block_ids is not None:
            yield from chain(*block_ids)
