"""Logits processor of vLLM that makes a model of random weights generate a script.

The engine's process imports this module, so it imports neither the service nor pytest.
"""

import json
import os
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer
from vllm.v1.sample.logits_processor import (
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
)

from tests.e2e.harnesses.script import ROLES, SCRIPTS, next_words

_DECISIVE = 1e4
"""Amount added to the logit of the next scripted token; tokens that a grammar forbids stay at minus
infinity.
"""


class ScriptedWords(LogitsProcessor):  # type: ignore[misc] # vLLM is not followed
    """Logits processor that makes each request generate the script named in its prompt."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(vllm_config.model_config.tokenizer)
        self._roles = {self._tokenizer.convert_tokens_to_ids(f"<|{role}|>"): role for role in ROLES}
        self._tools = self._tokenizer.convert_tokens_to_ids("<|tools|>")
        self._end = self._tokenizer.eos_token_id
        self._requests: dict[int, tuple[list[int], list[int]]] = {}
        """(tokens to generate, number generated so far) by index in vLLM's batch."""

    def is_argmax_invariant(self) -> bool:
        """Return False: the processor changes the most likely token."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Track requests that enter, leave and move within vLLM's batch."""
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._requests.pop(index, None)
        for index, _, prompt, said in batch_update.added:
            self._requests[index] = self._tokens_to_generate(prompt or []), said
        for one, other, direction in batch_update.moved:
            first, second = self._requests.pop(one, None), self._requests.pop(other, None)
            if first is not None:
                self._requests[other] = first
            if second is not None and direction == MoveDirectionality.SWAP:
                self._requests[one] = second

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Raise the logit of each request's next scripted token."""
        for index, (to_say, said) in self._requests.items():
            token = to_say[len(said)] if len(said) < len(to_say) else self._end
            logits[index, token] += _DECISIVE
        return logits

    def _tokens_to_generate(self, prompt: list[int]) -> list[int]:
        starts = [place for place, token in enumerate(prompt) if token in self._roles]
        if not starts:
            return []
        said = [
            (self._roles[prompt[start]], prompt[start + 1 : end])
            for start, end in zip(starts, chain(starts[1:], (len(prompt),)), strict=True)
        ]
        *before, (_, begun) = said  # Outputs from before the stream was continued.
        texts = [
            (role, self._tokenizer.decode(tokens) if role == "user" else "")
            for role, tokens in before
        ]
        scripts = json.loads(Path(os.environ[SCRIPTS]).read_text(encoding="utf-8"))
        words = next_words(texts, scripts, has_tools=self._tools in prompt[: starts[0]])
        tokens: list[int] = self._tokenizer.encode(words, add_special_tokens=False)
        return tokens[len(begun) :]
