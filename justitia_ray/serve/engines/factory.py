"""From the configuration to an engine, and to a count of the prompt tokens that it will have."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from justitia_ray.config import AppConfig
from justitia_ray.errors import RequestError
from justitia_ray.protocol.engine import Engine
from justitia_ray.protocol.inference_body import (
    Counting,
    CountPrompt,
    InferenceBody,
    Pair,
    Prompt,
)
from justitia_ray.serve.engines.fake_engine import FakeEngine
from justitia_ray.serve.engines.fake_openai import count_tokens
from justitia_ray.serve.engines.prompt_pieces import PieceCounter
from justitia_ray.serve.engines.random_models import materialise_model
from justitia_ray.units import Tokens


async def build_engine(config: AppConfig) -> Engine:
    """Return the configured engine, not started; its environment is set and its model is there.

    Raises:
        ConfigError: If the model or an engine option is not allowed.
    """
    engine, model = config.engine, config.model
    if engine.kind == "fake":
        return FakeEngine(model.name, **engine.fake.model_dump())
    os.environ.update(engine.env)  # vLLM and torch read it when they are imported
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
    )


def load_prompt_counter(config: AppConfig) -> CountPrompt:
    """Return the count of the configured engine: its tokenizer and chat template, or its rule.

    Blocks for some seconds with a real tokenizer.
    """
    if config.engine.kind == "fake":
        return _count_fake
    trust = bool(config.engine.vllm_args.get("trust_remote_code", False))
    model_path = materialise_model(config.model.path, config.model.cache_dir)
    tokenizer_path = str(config.engine.vllm_args.get("tokenizer", model_path))
    tokenizer = _load_tokenizer(tokenizer_path, trust_remote_code=trust)
    pieces = PieceCounter(tokenizer)
    return lambda prompt, body, most: _count_real(tokenizer, pieces, prompt, body, most)


def _load_tokenizer(path: str, *, trust_remote_code: bool) -> Any:
    """Return a tokenizer; one without a class of its own is loaded without torch.

    The choice of a class alone imports torch, which takes seconds of CPU and 0.4 GB.
    """
    described = Path(path, "tokenizer_config.json")
    values = json.loads(described.read_text(encoding="utf-8")) if described.is_file() else {}
    if values.get("tokenizer_class") == "TokenizersBackend" and "auto_map" not in values:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(path)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)


def _count_fake(prompt: Prompt, body: InferenceBody, most: Tokens | None) -> Counting:
    yield from ()
    return count_tokens(prompt)


def _count_real(
    tokenizer: Any, pieces: PieceCounter, prompt: Prompt, body: InferenceBody, most: Tokens | None
) -> Counting:
    if isinstance(prompt, list):
        return len(prompt)
    if isinstance(prompt, str):
        return (yield from pieces.count(prompt, most, special=True))
    if isinstance(prompt, Pair):
        return (yield from pieces.count_pair(prompt.first, prompt.second, most))
    try:
        text = tokenizer.apply_chat_template(
            list(prompt.messages), tokenize=False, add_generation_prompt=True, tools=prompt.tools
        )
    except Exception as error:  # templates raise whatever their author wrote
        if body.estimated:  # the conversation is not yet in the form that the engine gives it
            return (yield from pieces.count(prompt.text, most, special=True))
        raise RequestError(f"the chat template refuses the messages: {error}", "messages") from None
    yield  # rendering was a step
    return (yield from pieces.count(text, most, special=False))
