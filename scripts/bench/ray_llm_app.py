"""Competitor in `scripts/bench_serve`: ingress and server of `ray.serve.llm` on the fake engine.

`ray.serve.llm` accepts any class with the interface of its engines. Its OpenAI ingress, its server
and its batching of stream chunks (over 50 ms) are unchanged. pyarrow and jsonref are required:
extra `rivals`.
"""

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ray.serve import Application
from ray.serve.llm import LLMConfig, LLMServer, build_openai_app
from ray.serve.llm.openai_api_models import CompletionRequest, CompletionResponse

from justitia_ray.config import AppConfig
from justitia_ray.protocol.engine import EngineCall
from justitia_ray.protocol.generation_bodies import COMPLETIONS
from scripts.bench.floor_app import UNBOUNDED, start_engine

_CONFIG = "justitia"
"""Key of the engine's configuration in `LLMConfig.experimental_configs`."""


class FakeLLMEngine:
    """Fake engine with the methods that `LLMServer` calls."""

    def __init__(self, config: LLMConfig) -> None:
        self._config = config.experimental_configs[_CONFIG]

    async def start(self) -> None:
        self._engine = await start_engine(self._config)

    async def check_health(self) -> None:
        self._engine.check()

    async def completions(
        self, request: CompletionRequest, raw_request_info: Any = None
    ) -> AsyncGenerator[str | CompletionResponse]:
        """Yield the chunks of a streamed completion, or the one answer of a unary completion."""
        body = request.model_dump_json(exclude_unset=True).encode()
        call = EngineCall(uuid.uuid4().hex, 0, COMPLETIONS, {}, body)
        try:
            async with aclosing(self._engine.call(call)) as items:
                async for item in items:
                    if not isinstance(item, bytes):
                        continue
                    if request.stream:
                        yield item.decode()
                    else:
                        yield CompletionResponse.model_validate_json(item)
        finally:
            self._engine.release(call.lease_id)


class FakeLLMServer(LLMServer):  # type: ignore[misc]  # Ray's classes have no types
    """`LLMServer` with the fake engine, which requires no accelerator."""

    _default_engine_cls = FakeLLMEngine

    @classmethod
    def get_deployment_options(cls, llm_config: LLMConfig) -> dict[str, Any]:
        return {"num_replicas": 1, "max_ongoing_requests": UNBOUNDED, "name": "Replica"}


def build(args: dict[str, Any]) -> Application:
    """Return the `ray.serve.llm` application for the arguments of `justitia_ray.serve.app:build`.

    Raises:
        ConfigError: If a key is unknown or a value is not allowed.
    """
    config = AppConfig.parse(args)
    model = LLMConfig(
        model_loading_config={"model_id": config.model.name},
        server_cls=FakeLLMServer,
        experimental_configs={_CONFIG: config.model_dump()},
    )
    one_ingress = {"num_replicas": 1, "max_ongoing_requests": UNBOUNDED}
    return build_openai_app({"llm_configs": [model], "ingress_deployment_config": one_ingress})
