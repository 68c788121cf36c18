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


def test_chat_is_cut_at_the_system_prompt_the_last_answer_and_the_last_message() -> None:
    assert [
        "[tools]<system>Be brief. Users ask.<user>",
        "[tools]<system>Be brief. Users ask.<user>Users ask.<assistant>Reading.<tool>",
        "[tools]<system>Be brief. Users ask.<user>Users ask.<assistant>Reading.<tool>a file<tool>",
    ] == _cut_beginnings([_SYSTEM, *_TURN])


def test_chats_with_one_system_prompt_have_a_common_cut() -> None:
    first = _cut_beginnings([_SYSTEM, {"role": "user", "content": "one"}])
    second = _cut_beginnings([_SYSTEM, {"role": "user", "content": "another, longer"}])

    assert ["[tools]<system>Be brief. Users ask.<user>"] == first == second


def test_chat_without_a_system_prompt_is_cut_before_its_first_message() -> None:
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
def test_message_text_missing_in_the_rendered_chat_gives_no_cut_position(
    messages: list[dict[str, Any]],
) -> None:
    assert () == chat_cuts("", messages)
    assert all(0 < cut < 5 for cut in chat_cuts("<one>", messages))
