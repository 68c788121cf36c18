"""Prompts of a bounded size, without a tokenizer."""

import re

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


def prompt(instruction: str, material: str, words: int, *, fill: bool) -> str:
    """Return an instruction and what it is about, in at most so many words.

    The instruction stays whole, and so do eight words of the material.

    Args:
        instruction: What to do.
        material: What to do it with; cut at the end.
        words: The prompt's size.
        fill: Repeat the material up to that size. It then stands for the examples in the recorded
            prompts, which are longer than ours.
    """
    wanted, have = room(instruction, words), len(material.split())
    if fill and 0 < have < wanted:
        material = "\n".join([material] * -(-wanted // have))
    return f"{instruction}\n\n{clip(material, wanted)}"
