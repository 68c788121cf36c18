"""Prompts of a bounded size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.workloads import factool_kbqa, map_reduce_summary, self_consistency
from justitia_ray.workloads.lengths import LEAST_MAX_PROMPT_WORDS
from justitia_ray.workloads.prompts import clip, fits, prompt


@given(st.text(), st.integers(0, 20))
def test_clips_keep_both_bounds(text: str, max_words: int) -> None:
    """Words bound ordinary text, bytes what has no spaces: code, or a random model's answer."""
    clipped = clip(text, max_words)

    assert len(clipped.split()) <= max_words
    assert len(clipped.encode()) <= 6 * max_words
    assert text.startswith(clipped)


def test_a_text_within_the_bounds_is_untouched() -> None:
    """Line breaks matter to a reader, so words are not re-joined."""
    assert clip("a b\n\nc", 3) == "a b\n\nc"


def test_a_text_fits_or_loses_something() -> None:
    """A space at the end is no loss."""
    assert fits("a b \n", 2)
    assert not fits("a b c", 2)


def test_words_are_cut_only_where_one_is_too_long() -> None:
    """Two words may have 12 bytes: a third of four letters has no room, a first of 14 is cut."""
    assert clip("abcd efgh ijkl", 2) == "abcd efgh"
    assert clip("abcdef ghijklm", 2) == "abcdef"
    assert clip("abcdefghijklmn", 2) == "abcdefghijkl"


def test_a_prompt_is_cut_to_its_size() -> None:
    """Two words of instruction leave eight for the material."""
    assert prompt("Do it.", "a b c d e f g h i j", 10, fill=False) == "Do it.\n\na b c d e f g h"


def test_a_filled_prompt_repeats_its_material() -> None:
    """Ten words were planned: two of the instruction, eight of the material."""
    assert prompt("Do it.", "a b c", 10, fill=True).split() == [
        *["Do", "it."],
        *["a", "b", "c"] * 2,
        *["a", "b"],
    ]


def test_some_material_always_stays() -> None:
    """However short the plan is, every prompt is about something."""
    assert prompt("one two three", "a b c d e f g h i", 2, fill=False).endswith("a b c d e f g h")


def test_nothing_cannot_be_repeated() -> None:
    """A model may answer nothing at all."""
    assert prompt("Do it.", "", 10, fill=True) == "Do it.\n\n"


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
    """So that the least `max_prompt_words` holds for every agent."""
    assert len(instruction.split()) <= LEAST_MAX_PROMPT_WORDS - 8
