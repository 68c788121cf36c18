"""Inferences that the callers of the chaos runs and the simulation plan to submit."""

import json
from dataclasses import dataclass
from typing import Any

from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS
from justitia_ray.units import Seconds, Tokens
from tests.harness.answers import Answer, fake_answer

KILLER = "poison"
"""Word in a prompt that makes the engine die."""


@dataclass(frozen=True, slots=True)
class PlannedInference:
    name: str
    """Name of the inference, unique in its plan."""
    prompt: str
    max_tokens: Tokens
    stream: bool
    choices: int = 1
    chat: bool = False
    leaves_after_s: Seconds | None = None
    """Seconds after which the caller disconnects; None if it reads to the end."""
    reads_every_s: Seconds = 0.0
    """Seconds that the caller takes to read each chunk of the stream."""
    deadline_s: Seconds | None = None
    """Longest wait in the queue, in seconds; None for no limit."""

    @property
    def path(self) -> str:
        return CHAT if self.chat else COMPLETIONS

    @property
    def kills_engine(self) -> bool:
        return self.prompt.endswith(KILLER)

    def body(self, **more: Any) -> dict[str, Any]:
        prompt: dict[str, Any] = (
            {"messages": [{"role": "user", "content": self.prompt}]}
            if self.chat
            else {"prompt": self.prompt}
        )
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        sizes = {"max_tokens": self.max_tokens, "n": self.choices}
        return {**prompt, **sizes, **(streamed if self.stream else {}), **more}

    def fake_answer(self, model: str, max_model_len: Tokens) -> Answer:
        body = json.dumps(self.body(model=model)).encode()
        return fake_answer(self.path, body, model, max_model_len)
