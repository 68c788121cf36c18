"""Tiny BERTs of random weights: one that embeds, one that scores pairs of texts."""

from pathlib import Path
from typing import Any

from justitia_ray.serve.tiny_tokenizer import VOCABULARY, save_quietly, train_tokenizer


def build_tiny_embedding(directory: Path) -> None:
    """Write a BERT of 2 layers and hidden size 64 that embeds texts."""
    from transformers import BertModel

    save_quietly(_tokenizer(), lambda: BertModel(_config()), directory)


def build_tiny_reranker(directory: Path) -> None:
    """Write such a BERT with a head that gives a pair of texts one score: a cross-encoder."""
    from transformers import BertForSequenceClassification

    # With the usual range of 0.02 all pairs would have the same score but for the last digits.
    config = _config(num_labels=1, initializer_range=0.2)
    save_quietly(_tokenizer(), lambda: BertForSequenceClassification(config), directory)


def _config(**more: Any) -> Any:
    from transformers import BertConfig

    return BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=512,
        pad_token_id=2,
        **more,
    )


def _tokenizer() -> Any:
    """Return the tokenizer with the frame that BERTs know: one text, or two of different types."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = train_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", 0), ("</s>", 1)],
    )
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return tokenizer
