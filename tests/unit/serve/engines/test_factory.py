"""Engines and token counters built from the settings."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.config import AppConfig
from justitia_ray.serve.engines import vllm_engine
from justitia_ray.serve.engines.factory import build_engine

_PROGRAM = """
import sys
from transformers import PreTrainedTokenizerFast
from tokenizers import Tokenizer, models, pre_tokenizers
from justitia_ray.config import AppConfig
from justitia_ray.protocol.inference_body import InferenceBody
from justitia_ray.serve.engines.factory import load_prompt_counter

words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, "?"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(sys.argv[1])
config = AppConfig.parse({"model": {"name": "m", "path": sys.argv[1]}})
counting = load_prompt_counter(config)("a b a", InferenceBody({}, []), None)
try:
    next(counting)
except StopIteration as end:
    print(end.value.tokens, "torch" in sys.modules)
"""


def test_generic_tokenizer_is_loaded_without_torch(tmp_path: Path) -> None:
    """Importing torch would take an ingress seconds at its start and 0.4 GB of memory."""
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert "3 False\n" == said


@pytest.mark.parametrize(
    ("engine", "service", "exports"),
    [(True, True, True), (False, True, False), (True, False, False)],
)
async def test_engine_exports_metrics_if_both_settings_allow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: bool, service: bool, exports: bool
) -> None:
    made: dict[str, Any] = {}

    def record_options(*arguments: Any, **options: Any) -> object:
        made.update(options)
        return object()

    monkeypatch.setattr(vllm_engine, "VllmEngine", record_options)
    values = {
        "model": {"name": "m", "path": str(tmp_path)},
        "engine": {"metrics": engine},
        "metrics": {"enabled": service},
    }
    await build_engine(AppConfig.parse(values))

    assert exports == made["exports_metrics"]
