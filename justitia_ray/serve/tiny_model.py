"""The model of the CPU quick start and of the tests: a tiny random Llama, built on the spot.

It needs no download and no GPU. Its text is noise; its costs, lengths and timings are those of a
real engine.
"""

import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from justitia_ray.errors import ConfigError

_PREFIX = "random:"
_VOCABULARY = 2048
_CHAT_TEMPLATE = "{% for m in messages %}{{m['role']}}: {{m['content']}}\n{% endfor %}assistant: "


def materialise_model(path: str, cache_dir: Path) -> str:
    """Return a model path that vLLM and transformers can load, building a `random:` model first.

    A built model stays in `cache_dir/<name>-<python version>`: its tokenizer is trained on the
    standard library, so another Python would build another one. Several processes may do this at
    once; they all get the same complete directory.

    Args:
        path: `random:tiny-llama`, a directory, or a name on the hub; the last two are returned
            unchanged.
        cache_dir: Where built models are kept; created if missing.

    Raises:
        ConfigError: If `path` is an unknown `random:` model.
    """
    if not path.startswith(_PREFIX):
        return path
    name = path.removeprefix(_PREFIX)
    build = _BUILDERS.get(name)
    if build is None:
        allowed = ", ".join(f"{_PREFIX}{known}" for known in sorted(_BUILDERS))
        raise ConfigError(f"model: unknown built-in model {path!r}; allowed: {allowed}")
    directory = cache_dir / f"{name}-{sys.version_info.major}.{sys.version_info.minor}"
    if not directory.exists():
        _build_atomically(build, directory)
    return str(directory)


def _build_atomically(build: Callable[[Path], None], directory: Path) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        build(unfinished)
        unfinished.rename(directory)
    except OSError:
        # rename() onto a directory that is not empty fails: another process was faster, and what
        # it built is complete.
        if not directory.exists():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _build_tiny_llama(directory: Path) -> None:
    """Write a Llama of 2 layers and hidden size 128, and a tokenizer with a chat template.

    Two heads of 64: vLLM's CPU attention takes no head smaller than 32.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.utils import logging

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_stdlib_sources(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    fast.chat_template = _CHAT_TEMPLATE
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
    )
    progress_bars_were_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        fast.save_pretrained(str(directory))
        # The same weights everywhere, and the caller's random state untouched.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            LlamaForCausalLM(config).save_pretrained(str(directory))
    finally:
        if progress_bars_were_on:
            logging.enable_progress_bar()


def _stdlib_sources() -> Iterator[str]:
    for source in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        yield source.read_text(encoding="utf-8", errors="ignore")


_BUILDERS: dict[str, Callable[[Path], None]] = {"tiny-llama": _build_tiny_llama}
