"""Prompts of a bounded size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.errors import ConfigError
from justitia_ray.lab.workloads import factool_kbqa, map_reduce_summary, self_consistency
from justitia_ray.lab.workloads.react_fever import PassageSearch
from justitia_ray.lab.workloads.steps import Transcript, clip, prompt
from justitia_ray.sim.suites.load_plan import LEAST_MAX_PROMPT_WORDS


@given(st.text(), st.integers(0, 20))
def test_text_is_cut_by_words_and_bytes(text: str, max_words: int) -> None:
    """The limit in words is for ordinary text, that in bytes for text without spaces."""
    clipped = clip(text, max_words)

    assert len(clipped.split()) <= max_words
    assert len(clipped.encode()) <= 6 * max_words
    assert text.startswith(clipped)


def test_prompt_is_cut_or_filled_to_its_size() -> None:
    """Two words of instruction leave eight for the material, which is cut or repeated."""
    assert prompt("Do it.", "a b c d e f g h i j", 10, fill=False) == "Do it.\n\na b c d e f g h"
    assert prompt("Do it.", "a b c", 10, fill=True).split() == [
        *["Do", "it."],
        *["a", "b", "c"] * 2,
        *["a", "b"],
    ]


@pytest.mark.parametrize(
    "instruction",
    [
        self_consistency.INSTRUCTION,
        factool_kbqa.EXTRACT,
        factool_kbqa.QUERY,
        factool_kbqa.VERIFY,
        map_reduce_summary.MAP,
        map_reduce_summary.COLLAPSE,
        map_reduce_summary.FINAL,
    ],
)
def test_every_instruction_leaves_room_for_material(instruction: str) -> None:
    """Every agent can then run with the smallest allowed `max_prompt_words`."""
    assert len(instruction.split()) <= LEAST_MAX_PROMPT_WORDS - 8


EXAMPLES = ("one shot here", "two shots are so much more fun")


def test_planned_transcript_has_the_planned_lengths_and_repeats_its_beginning() -> None:
    """As with a real agent, a prefix cache then holds all but the new part of a prompt."""
    transcript = Transcript("Do it.", "The task.", EXAMPLES)
    prompts = []
    for words in (30, 40, 60):
        prompts.append(transcript.prompt(words, fill=True))
        transcript.add("an answer of five words")

    assert [30, 40, 60] == [len(text.split()) for text in prompts]
    assert prompts[2].startswith(prompts[1])
    assert prompts[1].startswith(prompts[0])
    assert "an answer of five words" in prompts[1]


def test_planned_transcript_is_cut_to_the_planned_length() -> None:
    transcript = Transcript("Do it.", "The task.")
    first = transcript.prompt(10, fill=True)
    transcript.add("word " * 50)

    assert 12 == len(transcript.prompt(12, fill=True).split())
    assert first.startswith("Do it.\n\nThe task.")


def test_new_turns_replace_examples_before_the_oldest_turns() -> None:
    """The latest turn decides the next step, so it must stay."""
    transcript = Transcript("Do it.", "The task.", EXAMPLES)

    assert all(example in transcript.prompt(20, fill=False) for example in EXAMPLES)
    transcript.add("turn one says this")
    shorter = transcript.prompt(12, fill=False)
    assert EXAMPLES[0] in shorter
    assert EXAMPLES[1] not in shorter
    transcript.add("turn two says that")
    transcript.add("turn three says so")
    last = transcript.prompt(15, fill=False)
    assert [False, False, True] == [f"turn {n}" in last for n in ("one", "two", "three")]
    assert last.startswith("Do it.\nThe task.\n[earlier turns left out]")


def test_examples_are_cut_only_to_fill_a_planned_prompt() -> None:
    """Examples fill a planned prompt to its recorded length, but a real model gets none cut."""
    filled = prompt("Do it.", "The task.", 40, fill=True, examples=EXAMPLES)
    free = prompt("Do it.", "The task.", 8, fill=False, examples=EXAMPLES)
    tight = prompt("Do it.", "The task.", 4, fill=False, examples=EXAMPLES[1:])

    assert 40 == len(filled.split())
    assert filled.endswith("\n\nThe task.")
    assert "Do it.\n\none shot here\n\nThe task." == free
    assert "Do it.\n\nThe task." == tight


async def test_search_finds_the_passage_that_shares_most_words() -> None:
    """An agent is informed if no passage matches."""
    search = PassageSearch(
        ["Cats: they purr.", "Paris: the capital of France.", "Dogs: they bark."]
    )

    assert ["Paris: the capital of France."] == await search.best("what is the capital of france")
    assert ["Dogs: they bark."] == await search.best("bark", count=3)
    assert [] == await search.best("xylophone")
    assert [] == await search.best("")

    with pytest.raises(ConfigError, match="passages must hold at least one text, got none"):
        PassageSearch([])
