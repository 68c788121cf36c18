"""What the tiny models share: a tokenizer trained on the standard library, and random weights."""

import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

VOCABULARY = 2048
"""Tokens of every tiny model."""


def train_tokenizer() -> Any:
    """Return a byte-level BPE tokenizer of transformers; 0 to 2 begin, end and pad."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_stdlib_sources(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def save_quietly(tokenizer: Any, make_model: Callable[[], Any], directory: Path) -> None:
    """Write tokenizer and model: the same weights everywhere, the caller's random state as it was.

    Args:
        tokenizer: Of transformers.
        make_model: Makes a model of transformers with random weights.
        directory: Where to; it exists.
    """
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


def _stdlib_sources() -> Iterator[str]:
    for source in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        yield source.read_text(encoding="utf-8", errors="ignore")
