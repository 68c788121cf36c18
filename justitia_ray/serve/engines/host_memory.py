"""KV caches in host memory (`engine.host_kv_gib`): vLLM's options, and how many tokens fit.

Host memory needs a GPU and a vLLM release that lets an eviction policy be named. vLLM 0.26 does
not; with any KV connector it also resumes models with recurrent layers from a wrong state
(vllm#53505, repaired by #50344).
"""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from justitia_ray.errors import ConfigError
from justitia_ray.protocol.engine import KeptKv
from justitia_ray.units import Seconds, Tokens

_GIB = 2**30
_POLICIES = "vllm.v1.kv_offload.cpu.policies.factory"
"""vLLM's module for eviction policies by name, in releases that accept one; 0.26 does not have it.
"""
_STORED_BYTES = "vllm:kv_offload_store_bytes"
"""Counter of vLLM's `OffloadingConnector`: bytes copied to host memory in an engine step."""


class HostKv:
    """KV tokens in host memory, computed from the bytes that vLLM has copied there.

    vLLM copies no block that is there already, and evicts only when the memory is full. Its own
    gauge of usage counts only blocks that are being copied.

    Args:
        gib: Size of the host memory in GiB.
        tokens: KV tokens that fit into it (`host_tokens`).
    """

    def __init__(self, gib: float, tokens: Tokens) -> None:
        self._size = gib * _GIB
        self._tokens = tokens
        self._stored = 0.0

    def note(self, stats: Mapping[str, Any]) -> None:
        """Add the bytes that were copied to host memory in an engine step."""
        self._stored += sum(stats["data"].get(_STORED_BYTES, {}).values())

    def read(self, now: Seconds) -> KeptKv:
        """Return the number of KV tokens in host memory."""
        used = min(1.0, self._stored / self._size)
        return KeptKv(host_kv_tokens=round(used * self._tokens))


def host_transfer_config(gib: float) -> str:
    """Return vLLM's `kv_transfer_config` for KV offloading to host memory of a size in GiB.

    Raises:
        ConfigError: If the installed vLLM accepts no eviction policy.
    """
    if find_spec(_POLICIES) is None:
        raise ConfigError(
            "engine.host_kv_gib: the installed vLLM accepts no eviction policy for host memory;"
            " 0.32 does"
        )
    return json.dumps(
        {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "cpu_bytes_to_use": int(gib * _GIB),
                "eviction_policy": "HostContexts",
                "cache_policy_module_path": "justitia_ray.serve.engines.host_policy",
            },
        }
    )


def host_tokens(gib: float, config: Any) -> Tokens:
    """Return the number of KV tokens that fit into the host memory.

    Layers with a sliding window count like other layers, so the memory of a hybrid model holds more
    tokens than this.

    Args:
        gib: Size of the memory in GiB, for all ranks together.
        config: vLLM's `VllmConfig`.
    """
    model, parallel = config.model_config, config.parallel_config
    layers = model.get_num_layers(parallel) * parallel.pipeline_parallel_size
    if model.use_mla:
        values = model.get_head_size()
    else:
        ranks = parallel.tensor_parallel_size
        values = 2 * model.get_head_size() * model.get_num_kv_heads(parallel) * ranks
    dtype = config.cache_config.cache_dtype
    value_bytes = 1 if dtype.startswith("fp8") else model.dtype.itemsize
    token_bytes: int = layers * values * value_bytes
    return int(gib * _GIB) // token_bytes
