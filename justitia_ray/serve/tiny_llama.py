"""A tiny Llama of random weights, with a chat template that shows tools and their answers."""

from pathlib import Path

from justitia_ray.serve.tiny_tokenizer import VOCABULARY, save_quietly, train_tokenizer

HIDDEN = 128
"""Hidden size."""
LAYERS = 2

_CHAT_TEMPLATE = (
    "{% for t in tools or [] %}tool: {{t | tojson}}\n{% endfor %}"
    "{% for m in messages %}{{m['role']}}: {{m['content']}}"
    "{% if m['tool_calls'] %} {{m['tool_calls'] | tojson}}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def build_tiny_llama(directory: Path) -> None:
    """Write a Llama of 2 layers and hidden size 128, and its tokenizer.

    Two heads of 64: vLLM's CPU attention takes no head smaller than 32.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = train_tokenizer()
    tokenizer.chat_template = _CHAT_TEMPLATE
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=256,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
    )
    save_quietly(tokenizer, lambda: LlamaForCausalLM(config), directory)
