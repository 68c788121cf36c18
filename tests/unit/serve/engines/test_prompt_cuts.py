"""Positions in rendered chats after which chats with a common beginning may differ."""

from typing import Any

import pytest

from justitia_ray.serve.engines.prompt_cuts import chat_cuts

_SYSTEM = {"role": "system", "content": " Be brief. Users ask. "}
_TURN: list[dict[str, Any]] = [
    {"role": "user", "content": "Users ask."},
    {"role": "assistant", "content": "Reading.", "tool_calls": []},
    {"role": "tool", "content": [{"type": "text", "text": "a file"}]},
    {"role": "tool", "content": "another file"},
]


def _rendered_chat(messages: list[dict[str, Any]]) -> str:
    texts = [m["content"] if isinstance(m["content"], str) else "a file" for m in messages]
    parts = [f"<{m['role']}>{t.strip()}" for m, t in zip(messages, texts, strict=True)]
    return "[tools]" + "".join(parts) + "<assistant>"


def _cut_beginnings(messages: list[dict[str, Any]]) -> list[str]:
    text = _rendered_chat(messages)
    return [text[:cut] for cut in chat_cuts(text, messages)]


def test_prefixes_of_a_chat_end_at_system_prompt_last_answer_and_last_message() -> None:
    assert [
        "[tools]<system>Be brief. Users ask.<user>",
        "[tools]<system>Be brief. Users ask.<user>Users ask.<assistant>Reading.<tool>",
        "[tools]<system>Be brief. Users ask.<user>Users ask.<assistant>Reading.<tool>a file<tool>",
    ] == _cut_beginnings([_SYSTEM, *_TURN])


def test_chats_with_an_equal_system_prompt_share_a_cut_position() -> None:
    first = _cut_beginnings([_SYSTEM, {"role": "user", "content": "one"}])
    second = _cut_beginnings([_SYSTEM, {"role": "user", "content": "another, longer"}])

    assert ["[tools]<system>Be brief. Users ask.<user>"] == first == second


def test_prefix_of_a_chat_without_system_prompt_ends_before_the_first_message() -> None:
    assert ["[tools]<user>"] == _cut_beginnings([{"role": "user", "content": "one"}])


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "system", "content": "s"}],
        [{"role": "user", "content": "not in the text"}],
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": 3}],
        [{"role": "assistant", "content": None}, {"role": "user"}],
    ],
)
def test_message_text_missing_in_a_rendered_chat_gives_no_cut_position(
    messages: list[dict[str, Any]],
) -> None:
    assert () == chat_cuts("", messages)
    assert all(0 < cut < 5 for cut in chat_cuts("<one>", messages))
