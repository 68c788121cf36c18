"""The counter of an ingress: what loading it brings into the process."""

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import sys
from transformers import PreTrainedTokenizerFast
from tokenizers import Tokenizer, models, pre_tokenizers
from justitia_ray.config import AppConfig
from justitia_ray.serve.engines.factory import load_prompt_counter

words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, "?"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(sys.argv[1])
config = AppConfig.parse({"model": {"name": "m", "path": sys.argv[1]}})
print(load_prompt_counter(config)("a b a", None), "torch" in sys.modules)
"""


def test_tokenizer_without_a_class_of_its_own_is_loaded_without_torch(tmp_path: Path) -> None:
    """Torch costs an ingress seconds at its start and 0.4 GB, and it computes nothing with it."""
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert "3 False\n" == said
