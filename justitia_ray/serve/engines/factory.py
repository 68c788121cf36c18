"""Build the configured engine, and the function that counts its prompt tokens."""

import asyncio
import os

from justitia_ray.config import AppConfig
from justitia_ray.protocol.engine import Engine
from justitia_ray.protocol.inference_body import (
    CountPrompt,
    InferenceBody,
    Prompt,
    PromptCounting,
)
from justitia_ray.serve.engines.cache_salts import CacheSalts
from justitia_ray.serve.engines.fake_engine import FakeEngine
from justitia_ray.serve.engines.fake_openai import count_prompt
from justitia_ray.serve.engines.prompt_counts import load_model_counter
from justitia_ray.serve.engines.random_models import materialise_model
from justitia_ray.serve.engines.vllm_variables import drop_unwanted_variables
from justitia_ray.units import Tokens


async def build_engine(config: AppConfig) -> Engine:
    """Return the configured engine, not started; sets its environment and downloads its model.

    Raises:
        ConfigError: If the model or an engine option is not allowed.
    """
    engine, model = config.engine, config.model
    salts = CacheSalts(engine.cache_isolation, engine.max_cache_salts)
    if engine.kind == "fake":
        return FakeEngine(model.name, **engine.fake.model_dump(), cache_salts=salts)
    os.environ.update(engine.env)  # vLLM and torch read the environment at import
    drop_unwanted_variables(os.environ)
    from justitia_ray.serve.engines.vllm_engine import VllmEngine

    path, *adapter_paths = [
        await asyncio.to_thread(materialise_model, path, model.cache_dir)
        for path in (model.path, *model.adapters.values())
    ]
    adapters = dict(zip(model.adapters, adapter_paths, strict=True))
    return VllmEngine(
        path,
        model.name,
        engine.vllm_args,
        adapters,
        exports_metrics=engine.metrics and config.metrics.enabled,
        cache_salts=salts,
        holds_contexts=engine.hold_contexts,
        host_kv_gib=engine.host_kv_gib,
        grammar_limits=(
            None
            if engine.grammar_timeout_s is None
            else (engine.grammar_timeout_s, engine.grammar_memory_bytes)
        ),
    )


def load_prompt_counter(config: AppConfig) -> CountPrompt:
    """Return the configured engine's prompt counter: with vLLM's tokenizer, or the fake engine's.

    It blocks for some seconds with a real tokenizer.
    """
    if config.engine.kind == "fake":
        return _count_fake
    return load_model_counter(config)


def _count_fake(prompt: Prompt, body: InferenceBody, most: Tokens | None) -> PromptCounting:
    yield from ()
    return count_prompt(prompt, wants_ids=body.wants_ids)
