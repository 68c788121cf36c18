"""Engine that runs vLLM: `AsyncLLM` and vLLM's own HTTP application, in one process.

The whole OpenAI and Anthropic surface is vLLM's, unknown fields included; none of it is implemented
here. vLLM is imported when an engine starts, so that importing this module is cheap.
"""

import asyncio
import logging
import multiprocessing.process
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from contextvars import Context, copy_context
from types import SimpleNamespace
from typing import Any

import psutil  # type: ignore[import-untyped]

from justitia_ray.errors import EngineError, StreamRefused
from justitia_ray.observability.log_events import log_event
from justitia_ray.protocol.engine import (
    EngineCall,
    EngineCapacity,
    Hold,
    KeptKv,
    Output,
    Progress,
    ResponseHead,
    Steps,
)
from justitia_ray.protocol.errors import openai_error
from justitia_ray.serve.asgi import Message, call_asgi
from justitia_ray.serve.engines.cache_salts import CacheSalts
from justitia_ray.serve.engines.exit_causes import count_oom_kills, ended_by_itself
from justitia_ray.serve.engines.grammar_checks import GrammarChecks
from justitia_ray.serve.engines.grammar_worker import vllm_judge
from justitia_ray.serve.engines.start_log import StartLog
from justitia_ray.serve.engines.vllm_args import VllmValue, checked_vllm_args, parse_vllm_args
from justitia_ray.serve.engines.vllm_releases import (
    http_server,
    is_engine_death,
    status_of,
)
from justitia_ray.serve.engines.vllm_requests import (
    CURRENT_METER,
    EngineGauges,
    LeasedEngineClient,
    LeaseMeter,
    meter_requests,
)
from justitia_ray.units import LeaseId, Seconds, Tokens

logger = logging.getLogger("ray.serve")

_NOT_PASSED_ON = frozenset(
    {
        "connection",
        "content-length",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Names of headers that are not passed on: hop-by-hop headers (RFC 9110, Sec. 7.6.1) and
`content-length`.
"""
_NO_METER = LeaseMeter(0)
"""Token counts that are returned for an unknown lease."""
_OOM_LOOK_S: Seconds = 5.0
"""Seconds between readings of the kernel's count of processes killed for lack of memory."""
_KILL_WAIT_S: Seconds = 5.0
"""Maximum seconds until killed processes exit; freeing the memory of a large model takes time."""


class VllmEngine:
    """Engine that runs vLLM; see `Engine` in `justitia_ray.protocol`.

    Args:
        model_path: A directory, or a model name on the Hugging Face hub.
        served_model_name: Name that callers pass as `model`.
        vllm_args: Options of `vllm serve`, without dashes: `{"max_model_len": 2048}`. Dictionary
            values are passed as JSON text.
        adapters: LoRA adapters: name that callers pass as `model`, to its path.
        cache_salts: Salts of the prefix cache, by tenant; None: all tenants share it.
        grammar_limits: Time (seconds) and memory (bytes) limits for compiling a grammar; None:
            grammars are not compiled in another process first.
        holds_contexts: Whether contexts are kept while their applications pause between inferences
            (`Hold`).
        host_kv_gib: Size of the KV cache in host memory; None: no host memory is used.
        exports_metrics: Whether vLLM's metrics are exported through Ray; this process
            then has to belong to a Ray cluster.

    Raises:
        ConfigError: If an option conflicts with the service, e.g. another `scheduling_policy`.
    """

    def __init__(
        self,
        model_path: str,
        served_model_name: str,
        vllm_args: Mapping[str, VllmValue],
        adapters: Mapping[str, str] | None = None,
        *,
        exports_metrics: bool = False,
        cache_salts: CacheSalts | None = None,
        grammar_limits: tuple[Seconds, int] | None = None,
        holds_contexts: bool = False,
        host_kv_gib: float | None = None,
    ) -> None:
        self._model_path = model_path
        self._served_model_name = served_model_name
        self._vllm_args = checked_vllm_args(vllm_args)
        self._adapters = dict(adapters or {})
        self._exports_metrics = exports_metrics
        self._cache_salts = cache_salts
        self._grammar_limits = grammar_limits
        self._host_kv_gib = host_kv_gib
        self._add_hold: Callable[[Any, Hold | None], Any] | None = None
        self._gauges = EngineGauges()
        if holds_contexts or host_kv_gib is not None:
            from justitia_ray.serve.engines.hold_parameters import TRANSFER_CONFIG, with_hold

            self._add_hold = with_hold
            self._vllm_args["kv_transfer_config"] = TRANSFER_CONFIG
        if holds_contexts:
            from justitia_ray.serve.engines.hold_reports import HeldKv

            self._gauges.connector = HeldKv()
        if host_kv_gib is not None:
            from justitia_ray.serve.engines.host_memory import host_transfer_config

            self._vllm_args["kv_transfer_config"] = host_transfer_config(host_kv_gib)
        self._grammars: GrammarChecks | None = None
        self._llm: Any = None
        self._app: Any = None
        """vLLM's FastAPI application; None until it is built."""
        self._core_processes: list[multiprocessing.process.BaseProcess] = []
        self._is_killed = False
        self._process_tree: list[psutil.Process] = []
        """The engine's processes and their descendants, listed while their parents run. Later,
        children of a killed process could not be found.
        """
        self._oom_kills = 0
        """Last reading of the kernel's count of processes killed for lack of memory."""
        self._looked_at: Seconds = 0.0
        self._kv_blocks = 0
        self._block_size: Tokens = 0
        self._meters: dict[LeaseId, LeaseMeter] = {}

    async def start(self) -> EngineCapacity:
        """Load the model. Blocks the event loop meanwhile, as vLLM's constructor does.

        Raises:
            ConfigError: If vLLM does not know an option or refuses its value.
            EngineError: If vLLM cannot start.
        """
        arguments = parse_vllm_args(
            self._model_path, self._served_model_name, self._vllm_args, self._adapters
        )
        self._oom_kills = count_oom_kills()
        log = StartLog()
        try:
            await self._start_llm(arguments)
            self._app = await self._build_app(arguments)
        except Exception as error:
            await self.stop()
            raise EngineError(
                f"vLLM could not start model {self._model_path!r}: {log.cause_of(error)} (the"
                " engine's log says more; usual causes are a wrong path, too little memory for"
                " max_model_len, and an option in vllm_args)"
            ) from error
        config = self._llm.vllm_config
        # vLLM never allocates its null block, and its gauge of KV usage excludes it too.
        self._kv_blocks = config.cache_config.num_gpu_blocks - 1
        self._block_size = config.cache_config.block_size
        if not self._kv_blocks:
            # An encoder keeps no KV, so this value is large enough never to limit it.
            longest = config.model_config.max_model_len
            blocks_each = -(-longest // self._block_size)
            self._kv_blocks = config.scheduler_config.max_num_seqs * blocks_each
        host_kv_tokens = 0 if self._host_kv_gib is None else self._count_host(self._host_kv_gib)
        return EngineCapacity(
            kv_tokens=self._kv_blocks * self._block_size,
            block_size=self._block_size,
            max_num_seqs=config.scheduler_config.max_num_seqs,
            max_model_len=config.model_config.max_model_len,
            caches_prefixes=bool(config.cache_config.enable_prefix_caching),
            holds_contexts=self._add_hold is not None,
            host_kv_tokens=host_kv_tokens,
        )

    def _count_host(self, gib: float) -> Tokens:
        """Return the KV tokens that fit into the host memory, and start to count its content."""
        from justitia_ray.serve.engines.host_memory import HostKv, host_tokens

        tokens = host_tokens(gib, self._llm.vllm_config)
        self._gauges.connector = HostKv(gib, tokens)
        return tokens

    async def _start_llm(self, arguments: Any) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        stat_loggers = [self._gauges.stat_logger()]
        if self._exports_metrics:
            from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger

            # This logger replaces vLLM's Prometheus logger, whose registry is not scraped here.
            stat_loggers.append(RayPrometheusStatLogger)
        self._llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs.from_cli_args(arguments),
            # The context selects the default batch size of `vllm serve`, 8,192 tokens on an H100.
            usage_context=UsageContext.OPENAI_API_SERVER,
            stat_loggers=stat_loggers,
        )
        self._core_processes = list(self._llm.engine_core.resources.engine_manager.processes)
        for process in self._core_processes:
            if process.pid is not None:
                root = psutil.Process(process.pid)
                self._process_tree += [root, *root.children(recursive=True)]
        caches = self._llm.vllm_config.cache_config.enable_prefix_caching
        salts = self._cache_salts if caches else None
        meter_requests(self._llm.output_processor, self._llm.engine_core, salts, self._add_hold)

    async def _build_app(self, arguments: Any) -> Any:
        from vllm.utils.gc_utils import freeze_gc_heap

        server = http_server()
        tasks = await self._llm.get_supported_tasks()
        app = server.build_app(arguments, tasks, self._llm.model_config)
        client = LeasedEngineClient(self._llm, self._make_grammar_checks(tasks))
        await server.init_app_state(client, app.state, arguments, tasks)
        # vLLM's error handlers stop an HTTP server when the engine dies; none runs here.
        app.state.server = SimpleNamespace(should_exit=False)
        freeze_gc_heap()  # vLLM's lifespan handler does this, but it is not run here.
        return app

    def _make_grammar_checks(self, tasks: Iterable[str]) -> GrammarChecks | None:
        if self._grammar_limits is None or "generate" not in tasks:
            return None
        self._llm.input_processor.structured_outputs_config = None
        self._grammars = GrammarChecks(vllm_judge, self._llm.vllm_config, *self._grammar_limits)
        return self._grammars

    def call(self, call: EngineCall) -> AsyncGenerator[ResponseHead | bytes]:
        """Run one call under a lease: yield the response head, then the body in vLLM's chunks.

        Raises:
            EngineError: If the engine is dead, or dies before the last chunk.
            StreamRefused: If vLLM raises an error after the head while the engine lives.
        """
        self.check()
        meter = self._meters[call.lease_id] = LeaseMeter(
            call.priority,
            call.earlier,
            call.tenant,
            self._gauges.prefills,
            call.hold,
            self._gauges.recomputations,
        )
        context = copy_context()
        context.run(CURRENT_METER.set, meter)
        return self._call_vllm(call.path, call.headers, call.body, context)

    async def answer_unscheduled(
        self, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[ResponseHead, bytes]:
        """Answer a call that needs no KV memory and no lease, such as `/tokenize`.

        Raises:
            EngineError: If the engine is dead, or dies before the answer is complete.
        """
        self.check()
        async with aclosing(self._call_vllm(path, headers, body, copy_context())) as items:
            head = await anext(items)
            assert isinstance(head, ResponseHead)
            return head, b"".join([item async for item in items if isinstance(item, bytes)])

    def paths(self) -> frozenset[str]:
        """Return the POST paths that vLLM's application serves for this model."""
        assert self._app is not None
        return frozenset(
            route.path
            for route in self._app.routes
            if "POST" in (getattr(route, "methods", ()) or ())
        )

    async def _call_vllm(
        self, path: str, headers: Mapping[str, str], body: bytes, context: Context
    ) -> AsyncGenerator[ResponseHead | bytes]:
        assert self._app is not None
        messages = call_asgi(self._app, path, _request_headers(headers, body), body, context)
        try:
            async with aclosing(messages):
                async for message in messages:
                    # An answer that vLLM gives after the engine's death is not passed on.
                    self._raise_if_errored()
                    if message["type"] == "http.response.start":
                        yield _response_head(message)
                    elif message["type"] == "http.response.body" and message.get("body"):
                        yield message["body"]
        except EngineError as error:
            self.check()
            cause = _cause_of(error)
            if is_engine_death(cause):
                raise
            raise _refused_stream(path, error, cause) from None

    def progress(self, lease_id: LeaseId) -> Progress:
        return self._meters.get(lease_id, _NO_METER).read_progress()

    def release(self, lease_id: LeaseId) -> Progress:
        return self._meters.pop(lease_id, _NO_METER).read_final(time.monotonic())

    def take_outputs(self, lease_id: LeaseId) -> tuple[Output, ...]:
        return self._meters.get(lease_id, _NO_METER).tape.take_outputs()

    def obstacle(self, lease_id: LeaseId) -> str:
        if self._llm is not None and self._llm.model_config.logits_processors:
            return "the logits processors of the engine may follow what was generated before"
        return self._meters.get(lease_id, _NO_METER).tape.obstacle

    def free_kv_tokens(self) -> Tokens:
        """Return the free KV memory in tokens after the engine's last iteration."""
        return round(self._kv_blocks * (1.0 - self._gauges.kv_usage)) * self._block_size

    def kept_kv(self) -> KeptKv:
        """Return the held contexts, or the use of the host memory, as of the last iteration."""
        connector = self._gauges.connector
        return KeptKv() if connector is None else connector.read(time.monotonic())

    def preemptions(self) -> int:
        """Return the number of preemptions; vLLM reports each with the sequence's next token."""
        return self._gauges.preemptions

    def steps(self) -> Steps:
        """Return the number of iterations that vLLM has logged, and whether the engine has work.

        vLLM iterates while it has any request, and its output processor keeps a state of each
        request until the last output or an abort.
        """
        has_work = self._llm is not None and bool(self._llm.output_processor.request_states)
        return Steps(self._gauges.steps, has_work)

    def suspended(self) -> str:
        """Return the engine process that is stopped by SIGSTOP or a debugger; empty if none."""
        for process in self._process_tree:
            with suppress(psutil.Error):
                if process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                    return f"process {process.pid} ({process.name()})"
        return ""

    def check(self) -> None:
        """Raise EngineError unless the engine is running.

        Raises:
            EngineError: If it has not started, was stopped, failed, or its process has exited.
        """
        self._raise_if_errored()
        for process in self._core_processes:
            if not process.is_alive():
                raise EngineError(
                    f"vLLM's process {process.name} is gone, exit code {process.exitcode}"
                )
        now = time.monotonic()
        if now - self._looked_at >= _OOM_LOOK_S:
            self._looked_at, self._oom_kills = now, count_oom_kills()

    def died_by_itself(self) -> bool:
        """Return whether the engine died through its own work; a killed worker rank counts too."""
        if self._is_killed:
            return False
        codes = [process.exitcode for process in self._core_processes]
        known = [code for code in codes if code is not None]
        out_of_memory = count_oom_kills() > self._oom_kills
        return ended_by_itself(known[0] if known else None, out_of_memory=out_of_memory)

    def _raise_if_errored(self) -> None:
        if self._llm is None:
            raise EngineError("the vLLM engine is not running")
        if self._llm.errored:
            raise EngineError("the vLLM engine is dead; its log says why")

    def kill(self) -> None:
        """Kill all processes of the engine with SIGKILL, which also ends stopped processes."""
        # The exit code is lost if another thread has already reaped the process.
        self._is_killed = True
        _kill_processes(self._process_tree)

    async def stop(self) -> None:
        if self._grammars is not None:
            self._grammars.stop()
        llm, self._llm = self._llm, None
        if llm is not None:
            await asyncio.to_thread(llm.shutdown)
            if llm.output_handler is not None:
                await asyncio.wait([llm.output_handler])
        # `shutdown` stops only direct children, and a killed EngineCore leaves its workers running.
        await asyncio.to_thread(_kill_processes, self._process_tree)
        self._process_tree = []
        self._core_processes = []


def _kill_processes(processes: list[psutil.Process]) -> None:
    """Kill processes that still run, and wait until they have exited. Blocks.

    Pid reuse is harmless: psutil compares start times before it kills.
    """
    left = [process for process in processes if process.is_running()]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=_KILL_WAIT_S)


def _cause_of(error: EngineError) -> BaseException | None:
    """Return vLLM's exception that ended a call, or None if its application only returned.

    Starlette wraps an exception for which it has a handler, if the head was sent before.
    """
    cause = error.__cause__
    if isinstance(cause, RuntimeError) and cause.__cause__ is not None:
        return cause.__cause__
    return cause


def _refused_stream(path: str, error: EngineError, cause: BaseException | None) -> StreamRefused:
    """Return the error that ended a stream after its head while the engine stayed alive."""
    status = 500 if cause is None else status_of(cause)
    if status >= 500:
        reason = type(cause).__name__  # the error's text may contain a prompt
        log_event(logger, logging.ERROR, "engine.call_failed", path=path, reason=reason)
    kind = "BadRequestError" if status < 500 else "InternalServerError"
    message = str(cause or "") or str(error)
    return StreamRefused(status, openai_error(message, kind, code=status)["error"])


def _request_headers(given: Mapping[str, str], body: bytes) -> Iterable[tuple[bytes, bytes]]:
    headers = {"content-type": "application/json"} | {
        name: value for name, value in given.items() if name not in _NOT_PASSED_ON
    }
    headers["content-length"] = str(len(body))
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


def _response_head(message: Message) -> ResponseHead:
    headers = {
        name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]
    }
    return ResponseHead(
        status=int(message["status"]),
        headers={name: value for name, value in headers.items() if name not in _NOT_PASSED_ON},
    )
