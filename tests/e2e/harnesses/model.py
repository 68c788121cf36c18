"""The scripted model: a one-layer Llama, fast with long prompts, and two chat templates."""

from pathlib import Path
from typing import Any

from tests.e2e.harnesses.script import ROLES

LENIENT, STRICT = "lenient", "strict"
CONTEXT = 131_072
_VOCABULARY = 8192
_MARKS = ("<|tools|>", "<|end|>", *(f"<|{role}|>" for role in ROLES))
_ROOT = Path(__file__).parents[3]

_TOOLS = "{% if tools %}<|tools|>{% for t in tools %}{{t | tojson}}\n{% endfor %}{% endif %}"
_ASKS = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
_LENIENT = (
    _TOOLS + "{% for m in messages %}"
    "<|{% if m.role in ('system', 'user', 'assistant', 'tool') %}{{m.role}}{% else %}system"
    "{% endif %}|>{{m.content}}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>{{c.function | tojson}}</tool_call>{% endfor %}"
    "<|end|>{% endfor %}" + _ASKS
)
_STRICT = (
    _TOOLS + "{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}"
    "{{raise_exception('System message must be at the beginning.')}}{% endif %}"
    "{% if m.role not in ('system', 'user', 'assistant', 'tool') %}"
    "{{raise_exception('Unexpected message role ' + m.role)}}{% endif %}"
    "<|{{m.role}}|>{{m.content}}"
    "{% for c in m.tool_calls or [] %}\n<function={{c.function.name}}>"
    "{% for name, value in c.function.arguments | items %}<{{name}}>{{value}}</{{name}}>"
    "{% endfor %}</function>{% endfor %}<|end|>{% endfor %}" + _ASKS
)
"""Strict chat template, as many models have: system message first, no developer role, tool
arguments as an object.
"""


def build_model(directory: Path) -> None:
    """Write the configuration, weights and tokenizer of a tiny model with two chat templates."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _train_tokenizer()
    directory.mkdir(parents=True)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(str(directory))
    tokenizer.save_pretrained(str(directory))
    for name, template in ((LENIENT, _LENIENT), (STRICT, _STRICT)):
        (directory / f"{name}.jinja").write_text(template, encoding="utf-8")


def _train_tokenizer() -> Any:
    """Return a byte-level BPE tokenizer, trained on this repository's text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=["<s>", *_MARKS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted([*_ROOT.glob("*.md"), *_ROOT.glob("deployments/*.md")])
    sources += sorted(_ROOT.glob("justitia_ray/**/*.py"))
    texts = (source.read_text(encoding="utf-8") for source in sources)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(
        [AddedToken(mark, special=False) for mark in ("<tool_call>", "</tool_call>")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="<|end|>", pad_token="<|end|>"
    )
