"""A LoRA adapter of random weights for the tiny Llama: it says something else than the model."""

import json
from pathlib import Path

from justitia_ray.serve.tiny_llama import HIDDEN, LAYERS

_RANK = 8
_MODULES = ("q_proj", "v_proj")


def build_tiny_adapter(directory: Path) -> None:
    """Write an adapter of rank 8 in PEFT's form, strong enough to change what is said."""
    import torch
    from safetensors.torch import save_file

    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny-llama",
        "bias": "none",
        "lora_alpha": 8 * _RANK,
        "r": _RANK,
        "target_modules": list(_MODULES),
    }
    (directory / "adapter_config.json").write_text(json.dumps(described), encoding="utf-8")
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for layer in range(LAYERS):
        for module in _MODULES:
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            for part, shape in (("A", (_RANK, HIDDEN)), ("B", (HIDDEN, _RANK))):
                key = f"{name}.lora_{part}.weight"
                weights[key] = torch.randn(shape, generator=generator)
    save_file(weights, str(directory / "adapter_model.safetensors"))
