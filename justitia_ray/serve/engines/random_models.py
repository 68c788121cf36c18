"""Models that are built locally without a download: tiny ones, and the shapes of real ones.

A model's output is noise; its costs, lengths and timings are those of a real engine. The tiny
models need no GPU. A shape is a configuration and a tokenizer without weights; with `load_format:
dummy` vLLM draws random weights, and speed and memory are those of the real model.
"""

import json
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from justitia_ray.errors import ConfigError

_VOCABULARY = 2048
"""Vocabulary size of every tiny model, in tokens."""
_SHAPE_VOCABULARY = 32_000
"""Vocabulary size of the tokenizers of models without weights, in tokens."""
_LLAMA_HIDDEN = 128
"""Hidden size of the tiny Llama."""
_LLAMA_LAYERS = 2

_CHAT_TEMPLATE = (
    "{% for t in tools or [] %}tool: {{t | tojson}}\n{% endfor %}"
    "{% for m in messages %}{{m['role']}}: {{m['content']}}"
    "{% if m['tool_calls'] %} {{m['tool_calls'] | tojson}}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
_ADAPTER_RANK = 8
_ADAPTED_MODULES = ("q_proj", "v_proj")


def _train_tokenizer(vocabulary: int = _VOCABULARY) -> Any:
    """Return a trained byte-level BPE tokenizer; its ids 0 to 2 are begin, end and pad."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = (source.read_text(encoding="utf-8", errors="ignore") for source in sources)
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def _save_quietly(tokenizer: Any, make_model: Callable[[], Any], directory: Path) -> None:
    """Write a tokenizer and a model with seeded weights; the global random state stays."""
    import torch
    from transformers.utils import logging

    progress_bars_were_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        tokenizer.save_pretrained(str(directory))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            make_model().save_pretrained(str(directory))
    finally:
        if progress_bars_were_on:
            logging.enable_progress_bar()


def _build_tiny_llama(directory: Path) -> None:
    """Write a Llama model of 2 layers and hidden size 128, and its tokenizer.

    It has two heads of size 64, because vLLM's CPU attention needs heads of at least 32.
    """
    _build_llama(directory, _LLAMA_LAYERS, _LLAMA_HIDDEN, intermediate=256)


def _build_small_llama(directory: Path) -> None:
    """Write a Llama model of 21 million parameters, and its tokenizer.

    On a CPU, its prefill of 2,000 tokens takes as long as some 100 decode iterations. That ratio is
    the one of 100,000 tokens with a model of 8 billion parameters on a GPU; with the tiny model, it
    is 20 iterations.
    """
    _build_llama(directory, layers=6, hidden=512, intermediate=1_408)


def _build_llama(directory: Path, layers: int, hidden: int, intermediate: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _train_tokenizer()
    tokenizer.chat_template = _CHAT_TEMPLATE
    heads = hidden // 64
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
    )
    _save_quietly(tokenizer, lambda: LlamaForCausalLM(config), directory)


def _build_tiny_adapter(directory: Path) -> None:
    """Write a LoRA adapter of rank 8 in PEFT's form, strong enough to change the output."""
    import torch
    from safetensors.torch import save_file

    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny-llama",
        "bias": "none",
        "lora_alpha": 8 * _ADAPTER_RANK,
        "r": _ADAPTER_RANK,
        "target_modules": list(_ADAPTED_MODULES),
    }
    (directory / "adapter_config.json").write_text(json.dumps(described), encoding="utf-8")
    generator = torch.Generator().manual_seed(0)
    shapes = {"A": (_ADAPTER_RANK, _LLAMA_HIDDEN), "B": (_LLAMA_HIDDEN, _ADAPTER_RANK)}
    weights = {}
    for layer in range(_LLAMA_LAYERS):
        for module in _ADAPTED_MODULES:
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            for part, shape in shapes.items():
                key = f"{name}.lora_{part}.weight"
                weights[key] = torch.randn(shape, generator=generator)
    save_file(weights, str(directory / "adapter_model.safetensors"))


def _build_tiny_embedding(directory: Path) -> None:
    """Write a BERT model of 2 layers and hidden size 64 that embeds texts."""
    from transformers import BertModel

    _save_quietly(_bert_tokenizer(), lambda: BertModel(_bert_config()), directory)


def _build_tiny_reranker(directory: Path) -> None:
    """Write a BERT cross-encoder model, which scores a pair of texts."""
    from transformers import BertForSequenceClassification

    # With the default range of 0.02 all pairs would get nearly the same score.
    config = _bert_config(num_labels=1, initializer_range=0.2)
    _save_quietly(_bert_tokenizer(), lambda: BertForSequenceClassification(config), directory)


def _bert_config(**more: Any) -> Any:
    from transformers import BertConfig

    return BertConfig(
        vocab_size=_VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=512,
        pad_token_id=2,
        **more,
    )


def _bert_tokenizer() -> Any:
    """Return the tokenizer with BERT's special tokens around one text or a pair of texts."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = _train_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", 0), ("</s>", 1)],
    )
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return tokenizer


def _build_llama_2_7b(directory: Path) -> None:
    """Write a configuration shaped like Llama 2 7B, with a vocabulary of the same size."""
    _save_shape(
        directory,
        vocab_size=_SHAPE_VOCABULARY,
        intermediate_size=11_008,
        num_key_value_heads=32,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
    )


def _build_llama_3_8b(directory: Path) -> None:
    """Write a configuration shaped like Llama 3.1 8B: 131,072 tokens of context, 8 KV heads.

    Its tokenizer has a quarter of the model's vocabulary, because training one of 128,256 takes
    minutes; the model still generates ids of the whole vocabulary.
    """
    _save_shape(
        directory,
        vocab_size=128_256,
        intermediate_size=14_336,
        num_key_value_heads=8,
        max_position_embeddings=131_072,
        rms_norm_eps=1e-5,
        rope_theta=500_000.0,
    )


def _save_shape(directory: Path, **more: Any) -> None:
    """Write the configuration of a Llama model of 32 layers without weights, and a tokenizer."""
    from transformers import LlamaConfig

    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        bos_token_id=0,
        eos_token_id=1,
        dtype="bfloat16",
        **more,
    )
    tokenizer = _train_tokenizer(_SHAPE_VOCABULARY)
    tokenizer.chat_template = _CHAT_TEMPLATE
    tokenizer.save_pretrained(str(directory))
    config.save_pretrained(str(directory))


_PREFIX = "random:"
_BUILDERS: dict[str, Callable[[Path], None]] = {
    "llama-2-7b": _build_llama_2_7b,
    "llama-3-8b": _build_llama_3_8b,
    "small-llama": _build_small_llama,
    "tiny-adapter": _build_tiny_adapter,
    "tiny-embedding": _build_tiny_embedding,
    "tiny-llama": _build_tiny_llama,
    "tiny-reranker": _build_tiny_reranker,
}


def materialise_model(path: str, cache_dir: Path | str) -> str:
    """Return the path of a model that vLLM can load; a `random:` model is built first.

    A built model is stored in `cache_dir/<name>-<python version>`: its tokenizer is trained on the
    standard library and so depends on the Python version. Several processes may build a model at
    once; all get the same complete directory.

    Args:
        path: `random:` and a built-in name, a directory, or a hub name; the last two
            are returned unchanged.
        cache_dir: Directory of built models, may start with `~`; created if missing.

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
    directory = (
        Path(cache_dir).expanduser() / f"{name}-{sys.version_info.major}.{sys.version_info.minor}"
    )
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
        # `rename` fails if another process has completed the same directory first.
        if not directory.exists():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
