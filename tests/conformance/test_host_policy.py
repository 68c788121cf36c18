"""Order of evictions from host memory, in vLLM's own manager of that memory.

The manager needs no GPU; copying blocks does. `scripts/bench_agents --engine gpu --arms ours-host`
and `test_host_memory.py` are for a GPU.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.protocol.engine import Hold
from justitia_ray.serve.engines.host_memory import HostKv, host_transfer_config
from tests.conformance.conftest import VLLM_ONLY

pytestmark = [*VLLM_ONLY[0].marks]

_CHUNKS = 8
_MODULE = "justitia_ray.serve.engines.host_policy"


class HostMemory:
    """KV cache in host memory with 8 chunks; each chunk is named by its token."""

    def __init__(self) -> None:
        from vllm.v1.kv_offload.base import ReqContext, make_offload_key
        from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

        self._context: Callable[..., Any] = ReqContext
        self._key: Callable[[bytes, int], Any] = make_offload_key
        self._manager: Any = CPUOffloadingManager(
            num_chunks=_CHUNKS, cache_policy="HostContexts", cache_policy_module_path=_MODULE
        )
        self.now = 0.0
        self._manager._policy._clock = lambda: self.now
        self._requests = 0

    def keys(self, tokens: Iterable[str]) -> list[Any]:
        return [self._key(token.encode(), 0) for token in tokens]

    def request(self, hold: Hold | None) -> Any:
        self._requests += 1
        params = None if hold is None else hold._asdict()
        context = self._context(req_id=str(self._requests), kv_transfer_params=params)
        self._manager.on_new_request(context)
        return context

    def store_prompt(self, tokens: Sequence[str], hold: Hold | None = None) -> bool:
        context, keys = self.request(hold), self.keys(tokens)
        stored = self._manager.prepare_store(keys, context)
        if stored is None:
            return False
        self._manager.complete_store(stored.keys_to_store, context)
        self._manager.on_request_finished(context)
        return True

    def are_stored(self, tokens: Iterable[str]) -> list[bool]:
        from vllm.v1.kv_offload.base import LookupResult

        context = self._context(req_id="look")
        return [self._manager.lookup(key, context) == LookupResult.HIT for key in self.keys(tokens)]


@pytest.fixture(autouse=True)
def _takes_policies() -> None:
    """Skip the test with vLLM 0.26, which cannot take an eviction policy for host memory."""
    import vllm

    if vllm.__version__.startswith("0.26."):
        with pytest.raises(ConfigError, match=r"engine\.host_kv_gib: .* 0\.32 does"):
            host_transfer_config(1.0)
        pytest.skip("vLLM 0.26 accepts no eviction policy for host memory")


@pytest.fixture
def host() -> HostMemory:
    return HostMemory()


def test_host_memory_evicts_the_least_recently_used_single_call_first(host: HostMemory) -> None:
    for tokens in ("ab", "cd", "ef", "gh"):
        host.store_prompt(tokens)
    host.store_prompt("ij")

    assert [False, False, True, True] == host.are_stored("abcd")


def test_context_of_an_open_application_survives_later_single_calls(host: HostMemory) -> None:
    host.store_prompt("abcd", Hold("agent", 10.0))
    for number in range(20):
        host.store_prompt((f"{number}x", f"{number}y"))

    assert [True] * 4 == host.are_stored("abcd")


def test_context_with_an_expired_hold_is_evicted_before_a_held_context(host: HostMemory) -> None:
    host.store_prompt("abc", Hold("long", 100.0))
    host.store_prompt("def", Hold("short", 5.0))
    host.now = 6.0
    host.store_prompt("xyz")

    assert [True] * 3 == host.are_stored("abc")
    assert [True, True, False] == host.are_stored("def")


def test_longest_idle_held_context_is_evicted_from_its_end(host: HostMemory) -> None:
    host.store_prompt("abc", Hold("first", 100.0))
    host.store_prompt("def", Hold("second", 100.0))
    host.store_prompt("xyz")

    assert [True, True, False] == host.are_stored("abc")
    assert [True] * 3 == host.are_stored("def")


def test_next_turn_marks_the_whole_context_as_recently_used(host: HostMemory) -> None:
    host.store_prompt("abc", Hold("first", 100.0))
    host.store_prompt("def", Hold("second", 100.0))
    host.store_prompt("abcg", Hold("first", 100.0))
    host.store_prompt("xy")

    assert [True] * 4 == host.are_stored("abcg")
    assert [True, True, False] == host.are_stored("def")


def test_context_of_an_ended_application_is_evicted_first(host: HostMemory) -> None:
    host.store_prompt("abc", Hold("stays", 100.0))
    host.store_prompt("def", Hold("ends", 100.0))
    host.store_prompt("x", Hold("other", 100.0, ("ends",)))
    host.store_prompt("yzuv")

    assert [True] * 3 == host.are_stored("abc")
    assert [False] * 3 == host.are_stored("def")


def test_host_memory_keeps_chunks_that_are_being_read(host: HostMemory) -> None:
    host.store_prompt("abcdefgh")
    context, keys = host.request(None), host.keys("abcdefgh")
    host._manager.prepare_load(keys, context)
    assert not host.store_prompt("x")
    host._manager.complete_load(keys, context)

    assert host.store_prompt("x")


def test_failed_transfer_leaves_no_chunk_in_host_memory(host: HostMemory) -> None:
    context, keys = host.request(None), host.keys("ab")
    stored = host._manager.prepare_store(keys, context)
    host._manager.complete_store(stored.keys_to_store, context, success=False)

    assert [False, False] == host.are_stored("ab")
    assert host.store_prompt("abcdefgh")


def test_reset_removes_every_chunk_from_host_memory(host: HostMemory) -> None:
    host.store_prompt("abcd", Hold("agent", 10.0))
    host._manager.reset_cache()

    assert [False] * 4 == host.are_stored("abcd")
    assert host.store_prompt("abcdefgh")


def test_computed_size_of_host_memory_equals_vllms_size(model_path: str) -> None:
    """The scheduler's estimate of cached contexts includes the tokens in host memory."""
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    from justitia_ray.serve.engines.host_memory import host_tokens

    config = AsyncEngineArgs(
        model=model_path,
        dtype="float32",
        enforce_eager=True,
        kv_transfer_config=KVTransferConfig(**json.loads(host_transfer_config(0.5))),
    ).create_engine_config()
    model = config.model_config.hf_config
    token_bytes = 2 * 4 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim

    assert 2**29 // token_bytes == host_tokens(0.5, config)
    assert "OffloadingConnector" == config.kv_transfer_config.kv_connector
    extra = config.kv_transfer_config.kv_connector_extra_config
    assert (2**29, "HostContexts") == (extra["cpu_bytes_to_use"], extra["eviction_policy"])


def test_tokens_in_host_memory_are_computed_from_vllms_stored_bytes() -> None:
    """A block is stored once, and evicted only when the host memory is full."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
        OffloadingConnectorStats,
        _TransferMetricName,
    )

    memory = HostKv(gib=1.0, tokens=1_000)
    used = [memory.read(0.0)]
    for stored in (2**28, 0, 2**28, 2**30):
        stats = OffloadingConnectorStats()
        stats.increase_counter(_TransferMetricName.LOAD_BYTES, 2**30)
        if stored:
            stats.increase_counter(_TransferMetricName.STORE_BYTES, stored)
        memory.note(stats.to_dict())
        used.append(memory.read(0.0))

    assert [0, 250, 250, 500, 1_000] == [kept.host_kv_tokens for kept in used]
    assert {None} == {kept.held_contexts for kept in used}
