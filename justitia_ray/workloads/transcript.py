"""The growing prompt of an agent that goes in turns."""

from collections.abc import Sequence

from justitia_ray.workloads.prompts import clip, fits, prompt, repeated

_LEFT_OUT = "[earlier turns left out]"


class Transcript:
    """Instruction, examples and material, and below them all that was said and seen.

    Args:
        instruction: What to do, turn after turn.
        material: What it is about.
        examples: Whole conversations, shown first; as many as leave room for what is said.
    """

    def __init__(self, instruction: str, material: str, examples: Sequence[str] = ()) -> None:
        self._instruction = instruction
        self._material = material
        self._examples = examples
        self._said: list[str] = []
        self._sent = ""
        self._sent_count = 0

    def add(self, text: str) -> None:
        """Note what was said or seen."""
        self._said.append(text.strip())

    def prompt(self, words: int, *, fill: bool) -> str:
        """Return all of it in at most so many words.

        Args:
            words: The prompt's size.
            fill: Make it exactly that long, as far as each prompt can begin with the one before it
                (which an engine that keeps prefixes has computed). Otherwise examples, then the
                oldest turns give way to the newest.
        """
        self._sent = self._filled(words) if fill else self._fitting(words)
        self._sent_count = len(self._said)
        return self._sent

    def _filled(self, words: int) -> str:
        if not self._sent:
            return prompt(
                self._instruction, self._material, words, fill=True, examples=self._examples
            )
        new = _joined(*self._said[self._sent_count :])
        left = words - len(self._sent.split()) - len(new.split())
        padding = clip(repeated(self._material, left), left) if left > 0 else ""
        return clip(_joined(self._sent, new, padding), words)

    def _fitting(self, words: int) -> str:
        turns = _joined(*self._said)
        for count in range(len(self._examples), -1, -1):
            whole = _joined(self._instruction, *self._examples[:count], self._material, turns)
            if fits(whole, words):
                return whole
        head = _joined(self._instruction, self._material, _LEFT_OUT)
        kept = self._said[-1:]
        for turn in reversed(self._said[:-1]):
            if not fits(_joined(head, turn, *kept), words):
                break
            kept = [turn, *kept]
        return clip(_joined(head, *kept), words)


def _joined(*parts: str) -> str:
    return "\n".join(part for part in parts if part)
