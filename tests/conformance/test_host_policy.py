"""Order of evictions from host memory, in vLLM's own manager of that memory.

The manager needs no GPU; copying blocks does. `scripts/bench_agents --engine gpu --arms ours-host`
and `test_host_memory.py` are for a GPU.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from justitia_ray.protocol.engine import Hold
from tests.conformance.conftest import VLLM_ONLY

pytestmark = [*VLLM_ONLY[0].marks]

_CHUNKS = 8
_MODULE = "justitia_ray.serve.engines.host_policy"


class Host:
    """Host memory of 8 chunks; a chunk is named by its token."""

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

    def call(self, tokens: Sequence[str], hold: Hold | None = None) -> bool:
        """Compute a prompt and store its chunks; return whether they were stored."""
        context, keys = self.request(hold), self.keys(tokens)
        stored = self._manager.prepare_store(keys, context)
        if stored is None:
            return False
        self._manager.complete_store(stored.keys_to_store, context)
        self._manager.on_request_finished(context)
        return True

    def lies(self, tokens: Iterable[str]) -> list[bool]:
        from vllm.v1.kv_offload.base import LookupResult

        context = self._context(req_id="look")
        return [self._manager.lookup(key, context) == LookupResult.HIT for key in self.keys(tokens)]


@pytest.fixture
def host() -> Host:
    return Host()


def test_least_recently_used_single_call_goes_first(host: Host) -> None:
    for tokens in ("ab", "cd", "ef", "gh"):
        host.call(tokens)
    host.call("ij")

    assert [False, False, True, True] == host.lies("abcd")


def test_context_of_an_open_application_outlives_later_single_calls(host: Host) -> None:
    host.call("abcd", Hold("agent", 10.0))
    for number in range(20):
        host.call((f"{number}x", f"{number}y"))

    assert [True] * 4 == host.lies("abcd")


def test_context_idle_beyond_its_hold_goes_before_one_that_is_held(host: Host) -> None:
    host.call("abc", Hold("long", 100.0))
    host.call("def", Hold("short", 5.0))
    host.now = 6.0
    host.call("xyz")

    assert [True] * 3 == host.lies("abc")
    assert [True, True, False] == host.lies("def")


def test_of_two_held_contexts_the_longer_idle_one_loses_its_last_tokens(host: Host) -> None:
    host.call("abc", Hold("first", 100.0))
    host.call("def", Hold("second", 100.0))
    host.call("xyz")

    assert [True, True, False] == host.lies("abc")
    assert [True] * 3 == host.lies("def")


def test_next_turn_makes_the_whole_context_the_last_used(host: Host) -> None:
    host.call("abc", Hold("first", 100.0))
    host.call("def", Hold("second", 100.0))
    host.call("abcg", Hold("first", 100.0))
    host.call("xy")

    assert [True] * 4 == host.lies("abcg")
    assert [True, True, False] == host.lies("def")


def test_context_of_an_ended_application_goes_before_open_ones(host: Host) -> None:
    host.call("abc", Hold("stays", 100.0))
    host.call("def", Hold("ends", 100.0))
    host.call("x", Hold("other", 100.0, ("ends",)))
    host.call("yzuv")

    assert [True] * 3 == host.lies("abc")
    assert [False] * 3 == host.lies("def")


def test_chunks_that_are_read_are_not_evicted(host: Host) -> None:
    host.call("abcdefgh")
    context, keys = host.request(None), host.keys("abcdefgh")
    host._manager.prepare_load(keys, context)
    assert not host.call("x")
    host._manager.complete_load(keys, context)

    assert host.call("x")


def test_failed_store_leaves_no_chunk(host: Host) -> None:
    context, keys = host.request(None), host.keys("ab")
    stored = host._manager.prepare_store(keys, context)
    host._manager.complete_store(stored.keys_to_store, context, success=False)

    assert [False, False] == host.lies("ab")
    assert host.call("abcdefgh")


def test_reset_removes_everything(host: Host) -> None:
    host.call("abcd", Hold("agent", 10.0))
    host._manager.reset_cache()

    assert [False] * 4 == host.lies("abcd")
    assert host.call("abcdefgh")


def test_tokens_of_host_memory_are_those_of_vllm(model_path: str) -> None:
    """The working set counts them."""
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    from justitia_ray.serve.engines.host_memory import host_tokens, host_transfer_config

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
