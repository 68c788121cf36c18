"""Memory of an ingress under mixed large bodies, and the delay of a small body; no Ray.

The HTTP application, the room for bodies, the token counter and its tokenizer are the real ones; a
body that fits the context is answered at once. The measurement runs in its own process, because
Python keeps freed memory.
"""

import asyncio
import gc
import json
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from justitia_ray.config import AppConfig
from justitia_ray.protocol.endpoints import TENANT_HEADER
from justitia_ray.protocol.engine import Answer
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from justitia_ray.protocol.inference_body import InferenceBody, output_bound
from justitia_ray.serve.asgi import call_asgi
from justitia_ray.serve.engines.factory import load_prompt_counter
from justitia_ray.serve.ingress.attempts import Attempts
from justitia_ray.serve.ingress.body_room import give_memory_back
from justitia_ray.serve.ingress.door import DEFAULT_TENANT, Door
from justitia_ray.serve.ingress.estimates import Estimates
from justitia_ray.serve.ingress.gateway import Gateway
from justitia_ray.serve.ingress.http_app import build_http_app
from justitia_ray.serve.ingress.models import ServedModel, ServedModels
from justitia_ray.serve.ingress.queue_client import QueueClient
from justitia_ray.serve.ingress.recognition import ApplicationFinder
from justitia_ray.serve.ingress.request_context import RequestContext
from justitia_ray.serve.ingress.submission import ApplicationSpecCache
from justitia_ray.serve.ingress.token_counter import TokenCounter
from justitia_ray.serve.ingress.waiting_streams import StreamOutlooks
from justitia_ray.units import Seconds, Tokens

_AT_ONCE = 20
_LEAST_BYTES = 1_000
_MOST_BYTES = 16 * 2**20 - 2_000
_BEAT_S: Seconds = 0.01
_PROBE_PAUSE_S: Seconds = 0.05
_WORDS = {
    "ascii": "the scheduler grants leases of KV tokens to tenants in order 42 foo_bar(x)",
    "wide": "漢字かな交じり文 дом 👩 naïve the scheduler",
}


@dataclass(frozen=True, slots=True)
class BodiesTaken:
    """Memory and latency of an ingress that receives many large request bodies."""

    bodies: int
    sent_mb: float
    peak_mb: float
    """Peak memory above the start, in MB."""
    after_mb: float
    """Memory above the start after all answers, in MB."""
    answered: int
    too_long: int
    refused: int
    """Number of bodies that the ingress refused because its memory for bodies was full."""
    probe_ms: float
    """Median latency of another tenant's chat of 3,000 characters during the load, in ms."""
    slowest_probe_ms: float
    seconds: float


class _ImmediateAnswers(Attempts):
    """Answers each inference whose prompt fits the context at once, without a queue."""

    def __init__(self, max_model_len: Tokens | None) -> None:
        self._max_model_len = max_model_len

    async def answer(self, path: str, context: RequestContext, body: InferenceBody) -> Answer:
        assert body.size is not None
        output_bound(body, body.size.longest_tokens, self._max_model_len)
        return 200, {"content-type": "application/json"}, b"{}"


class _AnsweringGateway(Gateway):
    """Gateway that counts the tokens of every inference, and then answers at once."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.attempts = _ImmediateAnswers(self.max_model_len)

    async def check_served(self, path: str) -> None: ...


class _MemorySampler:
    """Thread that samples this process's memory above its starting value."""

    def __init__(self) -> None:
        gc.collect()
        self._process = psutil.Process()
        self._begin = self._process.memory_info().rss
        self.peak_mb = 0.0
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._sample_repeatedly, daemon=True)
        self._watcher.start()

    def added_memory_mb(self) -> float:
        return float((self._process.memory_info().rss - self._begin) / 2**20)

    def _sample_repeatedly(self) -> None:
        while not self._ended.wait(_BEAT_S):
            self.peak_mb = max(self.peak_mb, self.added_memory_mb())

    def end(self) -> None:
        self._ended.set()
        self._watcher.join()


async def measure_bodies(bodies: int, _: Path) -> BodiesTaken:
    """Send mixed bodies, 20 at a time, and repeatedly a small chat of another tenant."""
    give_memory_back()
    app = _ingress_app()
    await _post_body(app, CHAT, _chat_body("a " * 3_000), "warm")
    draw = random.Random(5)
    texts = {
        kind: " ".join(draw.choices(words.split(), k=400_000)) for kind, words in _WORDS.items()
    }
    memory, began_at = _MemorySampler(), time.perf_counter()
    statuses: Counter[int] = Counter()
    sent_bytes, left = 0, bodies

    async def send_bodies() -> None:
        nonlocal sent_bytes, left
        while left:
            left -= 1
            path, body = await asyncio.to_thread(_mixed_bodies, draw, texts)
            sent_bytes += len(body)
            statuses[await _post_body(app, path, body, "large")] += 1

    probes: list[Seconds] = []
    probing = asyncio.create_task(_probe_latency(app, probes))
    await asyncio.gather(*(send_bodies() for _ in range(_AT_ONCE)))
    probing.cancel()
    seconds = time.perf_counter() - began_at
    memory.end()
    gc.collect()
    probes.sort()
    return BodiesTaken(
        bodies,
        sent_bytes / 2**20,
        memory.peak_mb,
        memory.added_memory_mb(),
        statuses[200],
        statuses[400],
        statuses[429],
        1_000 * probes[len(probes) // 2],
        1_000 * probes[-1],
        seconds,
    )


def _ingress_app() -> Any:
    config = AppConfig.parse(
        {
            "model": {"name": "m", "path": "random:tiny-llama"},
            "engine": {"vllm_args": {"max_model_len": 4_096}},
        }
    )
    nothing: Any = None
    specs = ApplicationSpecCache(0.0, 0)
    idle = QueueClient(nothing, lambda _: None, nothing, 1, 0.0)
    gateway = _AnsweringGateway(
        config,
        idle,
        nothing,
        Estimates(nothing, config.prediction),
        TokenCounter(load_prompt_counter(config)),
        specs,
        StreamOutlooks(nothing, 0.0),
    )
    models = ServedModels([ServedModel(config, gateway, nothing, nothing, nothing)])
    finder = ApplicationFinder(config.recognition)
    return build_http_app(models, specs, Door(None, DEFAULT_TENANT), finder)


async def _post_body(app: Any, path: str, body: bytes, tenant: str) -> int:
    headers = [
        (b"content-length", str(len(body)).encode()),
        (TENANT_HEADER.encode(), tenant.encode()),
    ]
    status = 0
    async for message in call_asgi(app, path, headers, body):
        if message["type"] == "http.response.start":
            status = message["status"]
    return status


async def _probe_latency(app: Any, probes: list[Seconds]) -> None:
    body = _chat_body("b " * 1_500)
    while True:
        began_at = time.perf_counter()
        await _post_body(app, CHAT, body, "small")
        probes.append(time.perf_counter() - began_at)
        await asyncio.sleep(_PROBE_PAUSE_S)


def _chat_body(text: str) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 1}).encode()


def _mixed_bodies(draw: random.Random, texts: dict[str, str]) -> tuple[str, bytes]:
    """Yield (kind, body) of 1 kB to 16 MB: a prompt, token ids, a chat, or tools."""
    size = round(_LEAST_BYTES * (_MOST_BYTES / _LEAST_BYTES) ** draw.random())
    kind = draw.choice(tuple(texts))
    width = len(texts[kind][:10_000].encode()) / 10_000
    characters = round(size / width * 0.9)
    text = (texts[kind] * (1 + characters // len(texts[kind])))[:characters]
    fields: dict[str, Any]
    pick = draw.randrange(7)
    if pick == 0:
        path, fields = COMPLETIONS, {"prompt": [draw.randrange(2_000)] * (size // 6)}
    elif pick == 1:
        path, fields = COMPLETIONS, {"prompt": text}
    elif pick == 2:
        part = max(200, len(text) // 200)
        parts = [text[begin : begin + part] for begin in range(0, len(text), part)]
        path = CHAT
        fields = {"messages": [{"role": "user", "content": part} for part in parts]}
    elif pick == 3:
        tool = {"type": "function", "function": {"name": "f", "description": text[:2_000]}}
        path = CHAT
        tools = [tool] * max(1, len(text) // 2_100)
        fields = {"messages": [{"role": "user", "content": "a"}], "tools": tools}
    elif pick == 4:
        path, fields = RESPONSES, {"input": text}
    elif pick == 5:
        path, fields = MESSAGES, {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
    else:
        path, fields = CHAT, {"messages": [{"role": "user", "content": text}]}
    return path, json.dumps({"model": "m", **fields}, ensure_ascii=False).encode()
