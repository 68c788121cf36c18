"""Prompts of a bounded size, without a tokenizer."""

import re
from collections.abc import Sequence

_BYTES_PER_WORD = 6
"""Of English, the space included. Bounds words that are none: code, and a random model's text."""
_LEAST_MATERIAL_WORDS = 8

_WORD = re.compile(r"\s*\S+")


def clip(text: str, max_words: int) -> str:
    """Return the start of a text: at most that many words, and six times as many bytes."""
    end, size, budget = 0, 0, max_words * _BYTES_PER_WORD
    for number, word in enumerate(_WORD.finditer(text)):
        size += len(word.group().encode())
        if number == max_words or size > budget:
            break
        end = word.end()
    if end:
        return text[:end]
    return text.encode()[:budget].decode(errors="ignore")  # a first word that has no room


def fits(text: str, max_words: int) -> bool:
    """Return whether `clip` would leave a text whole."""
    return clip(text, max_words) == text.rstrip()


def room(instruction: str, words: int) -> int:
    """Return how many words of material a prompt of so many words has, at least eight."""
    return max(_LEAST_MATERIAL_WORDS, words - len(instruction.split()))


def prompt(
    instruction: str, material: str, words: int, *, fill: bool, examples: Sequence[str] = ()
) -> str:
    """Return an instruction, examples and what it is about, in at most so many words.

    The instruction stays whole, and so do eight words of the material.

    Args:
        instruction: What to do.
        material: What to do it with; cut at the end.
        words: The prompt's size.
        fill: Repeat the examples up to that size, or the material where there are none: it then
            stands for the examples in the recorded prompts, which are longer than ours.
        examples: Shown before the material: as many, from the first, as leave room for it.
    """
    wanted = room(instruction, words)
    if not examples:
        material = clip(repeated(material, wanted) if fill else material, wanted)
        return f"{instruction}\n\n{material}"
    material = clip(material, wanted)
    left = wanted - len(material.split())
    if fill:
        shown = clip(repeated("\n\n".join(examples), left), left)
    else:
        kept = [e for i, e in enumerate(examples) if fits("\n\n".join(examples[: i + 1]), left)]
        shown = "\n\n".join(kept)
    return "\n\n".join(part for part in (instruction, shown, material) if part)


def repeated(text: str, words: int) -> str:
    """Return a text as often as it takes to have so many words; blank ones stay as they are."""
    have = len(text.split())
    return "\n".join([text] * -(-words // have)) if 0 < have < words else text
