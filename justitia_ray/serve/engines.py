"""From the configuration to an engine."""

import asyncio
import os
from pathlib import Path

from justitia_ray.config import AppConfig
from justitia_ray.serve.engine import Engine
from justitia_ray.serve.fake_engine import FakeEngine
from justitia_ray.serve.tiny_model import materialise_model


async def build_engine(config: AppConfig) -> Engine:
    """Return the configured engine, not started; its environment is set and its model is there.

    Raises:
        ConfigError: If the model or an engine option is not allowed.
    """
    if config.engine.kind == "fake":
        fake = config.engine.fake
        return FakeEngine(
            config.model.name,
            kv_tokens=fake.kv_tokens,
            block_size=fake.block_size,
            max_num_seqs=fake.max_num_seqs,
            max_model_len=fake.max_model_len,
            iteration_s=fake.iteration_s,
            prefill_s_per_token=fake.prefill_s_per_token,
        )
    os.environ.update(config.engine.env)  # vLLM and torch read it when they are imported
    from justitia_ray.serve.vllm_engine import VllmEngine

    model_path = await asyncio.to_thread(model_directory, config)
    adapters = {
        name: await asyncio.to_thread(_materialised, path, config)
        for name, path in config.model.adapters.items()
    }
    return VllmEngine(model_path, config.model.name, config.engine.vllm_args, adapters)


def model_directory(config: AppConfig) -> str:
    """Return the model's directory or hub name, building a random model if that is asked for.

    Raises:
        ConfigError: If there is no random model of that name.
    """
    return _materialised(config.model.path, config)


def _materialised(path: str, config: AppConfig) -> str:
    return materialise_model(path, Path(config.model.cache_dir).expanduser())
