"""vLLM's options and the token accounting of a lease, tested without vLLM."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from justitia_ray.config import EngineSection
from justitia_ray.errors import ConfigError, EngineError, StreamRefused
from justitia_ray.protocol.engine import EngineCall, Progress, ResponseHead
from justitia_ray.serve.engines import vllm_engine
from justitia_ray.serve.engines.recomputations import Recomputations
from justitia_ray.serve.engines.vllm_args import VllmValue, checked_vllm_args, parse_vllm_args
from justitia_ray.serve.engines.vllm_engine import VllmEngine
from justitia_ray.serve.engines.vllm_releases import (
    retryable_error,
    status_of,
    validation_error,
)
from justitia_ray.serve.engines.vllm_requests import LeaseMeter


@pytest.mark.parametrize(
    "option",
    [
        {"scheduling_policy": "fcfs"},
        {"scheduling-policy": "fcfs"},
        {"data_parallel_size": 2},
        {"enable_log_requests": True},
        {"sse_keep_alive_interval": 15},
        {"long_prefill_token_threshold": 1_024},
        {"long-prefill-token-threshold": 1},
        {"model": "other"},
        {"served-model-name": "other"},
        {"config": "file.yaml"},
        {"api_key": "secret"},
        {"api-key": "secret"},
        {"middleware": "a.b"},
        {"root_path": "/llm"},
        {"port": 9000},
        {"host": "0.0.0.0"},
        {"ssl_keyfile": "key.pem"},
        {"allowed_origins": '["*"]'},
        {"disable_log_stats": True},
        {"enable_log_outputs": True},
        {"--max-model-len": 5},
    ],
)
def test_vllm_options_that_would_break_the_service_are_refused(
    option: dict[str, VllmValue],
) -> None:
    """The service would not notice that queue, capacity, names or privacy have changed."""
    with pytest.raises(ConfigError, match=r"vllm_args: .*(allowed|cannot be set|no.* option name)"):
        VllmEngine("model", "name", option)


def test_priority_scheduling_is_always_enabled() -> None:
    assert checked_vllm_args({})["scheduling_policy"] == "priority"
    assert checked_vllm_args({"scheduling-policy": "priority"}) == checked_vllm_args({})
    assert checked_vllm_args({"disable_log_stats": False}) == checked_vllm_args({})


def test_common_prefix_of_concurrent_prompts_is_computed_once() -> None:
    """VLLM would compute a shared prefix twice for concurrent prompts, but charge it once."""
    assert 0 == checked_vllm_args({})["long_prefill_token_threshold"]
    assert checked_vllm_args({"long-prefill-token-threshold": 0}) == checked_vllm_args({})
    with pytest.raises(
        ConfigError, match="vllm_args: long_prefill_token_threshold is 64; allowed: 0 "
    ):
        checked_vllm_args({"long_prefill_token_threshold": 64})


@pytest.mark.parametrize(
    ("exit_codes", "oom_kills", "expected"),
    [([None], 0, True), ([1], 0, True), ([-9], 0, False), ([-9], 1, True), ([None, 0], 0, False)],
)
def test_exit_code_of_an_engine_process_shows_its_own_failure(
    exit_codes: list[int | None],
    oom_kills: int,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of several engine processes, the one that has ended decides.

    The OOM killer is recognised by the kernel's kill count.
    """
    engine: Any = VllmEngine("model", "name", {})
    engine._core_processes = [SimpleNamespace(exitcode=code) for code in exit_codes]
    monkeypatch.setattr(vllm_engine, "count_oom_kills", lambda: oom_kills)

    assert expected is engine.died_by_itself()


@pytest.mark.asyncio
async def test_vllm_batch_size_equals_the_default_of_vllms_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """VLLM derives the batch size from the usage context.

    On an H100 it is 8,192 tokens for the server and 2,048 without a context.
    """
    uses: list[str] = []

    def refuse_start(_: object, usage_context: str = "ENGINE_CONTEXT", **__: object) -> None:
        uses.append(usage_context)
        raise RuntimeError("no engine here")

    for module, names in {
        "vllm.engine.arg_utils": {"AsyncEngineArgs": SimpleNamespace(from_cli_args=lambda _: None)},
        "vllm.usage.usage_lib": {"UsageContext": SimpleNamespace(OPENAI_API_SERVER="server")},
        "vllm.v1.engine.async_llm": {"AsyncLLM": SimpleNamespace(from_engine_args=refuse_start)},
    }.items():
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**names))
    engine: Any = VllmEngine("model", "name", {})
    engine._gauges = SimpleNamespace(stat_logger=lambda: None)

    with pytest.raises(RuntimeError, match="no engine here"):
        await engine._start_llm(None)

    assert ["server"] == uses


def test_engine_that_was_killed_did_not_die_by_itself() -> None:
    """The exit code is lost if psutil reaps the process before `multiprocessing` does."""
    engine: Any = VllmEngine("model", "name", {})
    engine._core_processes = [SimpleNamespace(exitcode=None)]
    engine.kill()

    assert not engine.died_by_itself()


class VllmRefuses(Exception):
    """Exception that stands for a refusal by vLLM."""


class EngineIsDead(Exception):
    """Exception that stands for the one that vLLM raises once its engine is dead."""


def _engine_raising(error: Exception, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an engine whose web application raises an error after the response head."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        raise RuntimeError("Caught handled exception, but response already started.") from error

    monkeypatch.setattr(vllm_engine, "is_engine_death", lambda e: isinstance(e, EngineIsDead))
    monkeypatch.setattr(vllm_engine, "status_of", lambda e: 400 if e.args else 500)
    engine: Any = VllmEngine("model", "name", {})
    engine._app, engine._llm = app, SimpleNamespace(errored=False)
    return engine


async def _items_of(engine: Any, seen: list[Any]) -> None:
    call = EngineCall("1-1", 0, "/v1/responses", {}, b"{}")
    async for item in engine.call(call):
        seen.append(item)  # noqa: PERF401  # kept when the next one fails


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (VllmRefuses("the grammar is refused"), 400, "the grammar is refused"),
        (VllmRefuses(), 500, "the engine ended /v1/responses without a complete answer"),
    ],
)
async def test_stream_error_of_a_running_engine_is_a_refusal(
    error: Exception, status: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error taken for the engine's death would end a replica with all its calls."""
    engine, seen = _engine_raising(error, monkeypatch), list[Any]()
    with pytest.raises(StreamRefused) as refused:
        await _items_of(engine, seen)

    assert (status, told) == (refused.value.status, refused.value.error["message"])
    assert [ResponseHead(200, {}), b"begun"] == seen


@pytest.mark.asyncio
@pytest.mark.parametrize("is_errored", [False, True])
async def test_stream_error_of_a_dead_engine_reports_its_death(
    is_errored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VLLM's exception may arrive before the engine's state shows its death."""
    error = VllmRefuses("x") if is_errored else EngineIsDead("x")
    engine = _engine_raising(error, monkeypatch)
    engine._llm.errored = is_errored
    engine.check = engine._raise_if_errored
    monkeypatch.setattr(engine, "_raise_if_errored", lambda: None)
    with pytest.raises(EngineError):
        await _items_of(engine, [])


@pytest.mark.vllm
def test_exceptions_are_answered_with_vllms_status_codes() -> None:
    from vllm import exceptions

    errors = {
        validation_error("wrong"): 400,
        exceptions.VLLMNotFoundError("none"): 404,
        exceptions.VLLMUnprocessableEntityError("unreadable"): 422,
        ValueError("wrong"): 400,
        NotImplementedError("not yet"): 501,
        KeyError("a bug"): 500,
    }
    assert list(errors.values()) == [status_of(error) for error in errors]
    assert status_of(retryable_error("later")) in (500, 503)


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
def test_options_are_parsed_by_vllms_own_parser() -> None:
    """All options of `vllm serve` are accepted, and errors name those that vLLM refuses."""
    options = {"max_model_len": 2048, "enforce_eager": True, "enable_prefix_caching": False}

    parsed = parse_vllm_args(
        "some/model", "name", checked_vllm_args(options), {"a": "x/y", "b": "z"}
    )

    assert parsed.model == "some/model"
    assert parsed.served_model_name == ["name"]
    assert parsed.max_model_len == 2048
    assert parsed.enforce_eager is True
    assert parsed.enable_prefix_caching is False
    assert parsed.scheduling_policy == "priority"
    assert (parsed.enable_lora, parsed.max_loras) == (True, 2)
    assert [("a", "x/y"), ("b", "z")] == [(lora.name, lora.path) for lora in parsed.lora_modules]
    for wrong in (
        {"max_model_length": 2048},
        {"max_model_le": 1},
        {"max_num_seqs": "many"},
        {"chat_template": "/no/such/file.jinja"},
        {"enable_auto_tool_choice": True},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong)).replace("_", "[-_]")):
            parse_vllm_args("some/model", "name", checked_vllm_args(wrong), {})


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    "value",
    [*(2048, "2048", "2k", "2K", "25.6k", "1M", "0.5m", "auto", "Auto", "-1", -1), " 4k "],
)
def test_declared_context_length_is_interpreted_as_in_vllm(value: VllmValue) -> None:
    """The ingress has no vLLM and uses the declared length until an engine has started."""
    engine = EngineSection(vllm_args={"max_model_len": value})
    parsed = parse_vllm_args("m", "m", checked_vllm_args(engine.vllm_args), {})

    assert parsed.max_model_len == (engine.declared_context or -1)


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize("value", ["lots", "2.5K", "-2k", "", "2 k", "1e3", True])
def test_context_length_that_vllm_cannot_read_is_refused(value: VllmValue) -> None:
    with pytest.raises(ConfigError):
        parse_vllm_args("m", "m", checked_vllm_args({"max_model_len": value}), {})
    with pytest.raises(ValidationError, match="a number of tokens above 0"):
        EngineSection(vllm_args={"max_model_len": value})


def request_state(request_id: str, prompt_len: int, *, generates: bool) -> Any:
    """Return the fields of vLLM's `RequestState` that a meter reads, for a new sequence."""
    serving = object() if generates else None
    return SimpleNamespace(
        request_id=request_id,
        prompt_len=prompt_len,
        stats=SimpleNamespace(num_generation_tokens=0, num_preemptions=0),
        detokenizer=serving,
        logprobs_processor=serving,
        is_prefilling=True,
        num_cached_tokens=0,
    )


def test_pooling_input_is_charged_as_one_output_token() -> None:
    """The token is charged once the whole input is computed, and nothing before."""
    meter = LeaseMeter(0)
    first, second = (request_state(request_id, 4, generates=False) for request_id in ("a", "b"))
    meter.add_sequence(first)
    meter.add_sequence(second)
    waiting = meter.read_progress()
    first.is_prefilling = False

    assert (Progress(8, 0), Progress(8, 1)) == (waiting, meter.read_progress())


def test_generating_sequence_is_charged_by_vllms_own_token_count() -> None:
    meter, running = LeaseMeter(0), request_state("g", 5, generates=True)
    meter.add_sequence(running)
    running.is_prefilling = False
    running.stats.num_generation_tokens = 3

    assert Progress(5, 3, 0) == meter.read_progress()


def test_cached_tokens_are_reported_after_every_sequence_has_its_first_token() -> None:
    meter = LeaseMeter(0)
    first, second = (request_state(request_id, 40, generates=True) for request_id in ("a", "b"))
    meter.add_sequence(first)
    meter.add_sequence(second)
    assert meter.read_final(0.0).cached_tokens is None

    first.is_prefilling, first.num_cached_tokens = False, 32
    assert meter.read_progress().cached_tokens is None
    assert 32 == meter.read_final(0.0).cached_tokens

    # The second sequence continued after 8 tokens.
    second.is_prefilling, second.num_cached_tokens = False, 48
    assert Progress(80, 0, 72) == meter.read_progress()


def test_tokens_of_a_preempted_sequence_count_again_if_evicted_from_the_cache() -> None:
    """Two sequences were admitted again in one step: 400 tokens, of which 100 were cached."""
    recomputations = Recomputations()
    meter, other = (LeaseMeter(0, recomputations=recomputations) for _ in range(2))
    first, second = (request_state(name, 90, generates=True) for name in ("a", "b"))
    meter.add_sequence(first)
    other.add_sequence(second)
    recomputations.note_step(400, 100)
    assert meter.read_progress().recomputed_tokens == 0
    first.stats.num_preemptions, first.stats.num_generation_tokens = 1, 10
    second.stats.num_preemptions, second.stats.num_generation_tokens = 1, 210

    assert meter.read_progress().recomputed_tokens == 75
    assert meter.read_progress().recomputed_tokens == 75
    assert other.read_final(0.0).recomputed_tokens == 225


def test_every_preemption_of_a_sequence_counts() -> None:
    """Without a prefix cache, each preemption computes the whole sequence again."""
    meter, running = LeaseMeter(0), request_state("a", 90, generates=True)
    meter.add_sequence(running)
    running.stats.num_preemptions, running.stats.num_generation_tokens = 2, 10

    assert meter.read_progress().recomputed_tokens == 200
    running.stats.num_preemptions, running.stats.num_generation_tokens = 3, 30
    assert meter.read_progress().recomputed_tokens == 320


def test_vllm_release_that_counts_no_preemptions_reports_no_recomputed_tokens() -> None:
    meter, running = LeaseMeter(0), request_state("a", 90, generates=True)
    meter.add_sequence(running)
    del running.stats.num_preemptions

    assert meter.read_progress().recomputed_tokens == 0
