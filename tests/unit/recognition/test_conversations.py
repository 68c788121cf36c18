"""Conversations: how clients send earlier answers back in follow-up calls."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from justitia_ray.errors import JustitiaError
from justitia_ray.protocol.endpoints import parse_body
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from justitia_ray.recognition.answers import AnswerReader
from justitia_ray.recognition.conversations import MOST_ASKED, Conversation, read_conversation
from justitia_ray.recognition.directory import Directory
from justitia_ray.recognition.turns import MODEL, Turn

Json = dict[str, Any]

_QUESTION = {"role": "user", "content": "What is in the file?"}
_CALL = {"id": "call_7", "type": "function", "function": {"name": "read", "arguments": '{"a": 1}'}}
_CHAT_ANSWER = {"role": "assistant", "content": "Let me look.", "tool_calls": [_CALL]}
_RESULT = {"role": "tool", "tool_call_id": "call_7", "content": "nothing"}


def conversation_of(path: str, fields: Json, scope: str = "t") -> Conversation:
    found = read_conversation(path, fields, scope)
    assert found is not None
    return found


def chat_of(*messages: Json, scope: str = "t") -> Conversation:
    return conversation_of(CHAT, {"messages": list(messages)}, scope)


def turns_of(path: str, *pieces: bytes, stream: bool = False) -> list[Turn]:
    """Return the model's turns in an answer that arrives in these pieces."""
    reader = AnswerReader(path, stream=stream)
    for piece in pieces:
        reader.add(piece)
    assert reader.is_whole
    return reader.turns()


def chat_turn(**message: Any) -> Turn:
    [turn] = turns_of(CHAT, json.dumps({"choices": [{"index": 0, "message": message}]}).encode())
    return turn


def sse_events(*data: Json, done: bool = False) -> bytes:
    lines = [f"data: {json.dumps(one)}\n\n" for one in data] + ["data: [DONE]\n\n"] * done
    return "".join(lines).encode()


@pytest.mark.parametrize(
    "sent_back",
    [
        _CHAT_ANSWER,
        _CHAT_ANSWER | {"refusal": None, "audio": None, "reasoning_content": "hm"},
        _CHAT_ANSWER | {"content": [{"type": "text", "text": "Let me look."}]},
        _CHAT_ANSWER | {"content": "Let me look.\n"},
        _CHAT_ANSWER
        | {"tool_calls": [_CALL | {"function": {"name": "read", "arguments": '{"a":1}'}}]},
    ],
)
def test_chat_continues_in_any_format_of_its_clients(sent_back: Json) -> None:
    """Clients change parts, outer spaces and argument formats; text and call ids stay equal."""
    first = chat_of(_QUESTION)
    name = first.name_after(chat_turn(**_CHAT_ANSWER))

    assert () == first.beginnings
    assert (name,) == chat_of(_QUESTION, sent_back, _RESULT).beginnings


@pytest.mark.parametrize(
    "messages",
    [
        [_QUESTION, _CHAT_ANSWER | {"content": "Let me see."}, _RESULT],
        [_QUESTION, _CHAT_ANSWER | {"tool_calls": [_CALL | {"id": "call_8"}]}, _RESULT],
        [{"role": "user", "content": "What is in the files?"}, _CHAT_ANSWER, _RESULT],
        [{"role": "system", "content": "s"}, _QUESTION, _CHAT_ANSWER, _RESULT],
        [_QUESTION, _RESULT],
        [_QUESTION],
    ],
)
def test_changed_conversation_is_recognised_as_another_conversation(messages: list[Json]) -> None:
    """In each case the text, a call id or an earlier message differs, or the answer is missing."""
    name = chat_of(_QUESTION).name_after(chat_turn(**_CHAT_ANSWER))

    assert name not in chat_of(*messages).beginnings


def test_equal_conversations_of_two_tenants_are_distinguished() -> None:
    """Conversations are separate by tenant and by credential."""
    turn = chat_turn(content="yes")
    names = [chat_of(_QUESTION, scope=scope).name_after(turn) for scope in ("a", "b")]

    assert names[0] != names[1]


def test_conversation_forks_continue_from_their_common_part() -> None:
    """A conversation forks into two, one of which goes on for another turn."""
    turn = chat_turn(content="yes")
    answer = {"role": "assistant", "content": "yes"}
    root = chat_of(_QUESTION).name_after(turn)
    left = chat_of(_QUESTION, answer, {"role": "user", "content": "left"})
    right = chat_of(_QUESTION, answer, {"role": "user", "content": "right"})
    further = chat_of(
        _QUESTION,
        answer,
        {"role": "user", "content": "left"},
        answer,
        {"role": "user", "content": "on"},
    )

    assert (root,) == left.beginnings == right.beginnings
    assert (left.name_after(turn), root) == further.beginnings


@pytest.mark.parametrize("same_question", [False, True])
def test_shared_prompt_template_does_not_join_calls(same_question: bool) -> None:
    """Examples in a prompt look like earlier answers of the model.

    Calls with equal questions and answers are not joined either once there are two of them.
    """
    template = [_QUESTION, {"role": "assistant", "content": "an example"}]
    directory, turn = Directory(), chat_turn(content="yes")
    joined = 0
    for number in range(3_000):
        question = {"role": "user", "content": "q" if same_question else str(number)}
        call = chat_of(*template, question)
        joined += bool(directory.find_conversation("t", call.beginnings))
        directory.name_conversation("t", [call.name_after(turn)], f"app-{number}")
        if number > 0 and same_question:
            follow_up = chat_of(
                *template, question, {"role": "assistant", "content": "yes"}, _QUESTION
            )
            joined += bool(directory.find_conversation("t", follow_up.beginnings))

    assert 0 == joined


def test_lookup_of_a_long_conversation_sends_only_its_longest_prefixes() -> None:
    """The number of conversation names in a lookup is limited."""
    messages = [_QUESTION, {"role": "assistant", "content": "yes"}] * 100
    call = chat_of(*messages, _QUESTION)

    assert MOST_ASKED == len(call.beginnings)
    assert call.beginnings[0] == chat_of(*messages[:-1]).name_after(chat_turn(content="yes"))


def test_answer_begun_by_the_caller_is_one_turn_with_its_continuation() -> None:
    """A caller may send the beginning of the model's turn."""
    begun = chat_of(_QUESTION, {"role": "assistant", "content": "The answer is"})
    name = begun.name_after(chat_turn(content=" 42."))
    whole = {"role": "assistant", "content": "The answer is 42."}

    assert begun.beginnings == (chat_of(_QUESTION).name_after(Turn(MODEL, "The answer is")),)
    assert name != chat_of(_QUESTION, whole, _QUESTION).beginnings[0]
    assert (name,) == chat_of(
        _QUESTION, {"role": "assistant", "content": "The answer is"}, whole | {"content": "42."}
    ).beginnings


def test_streamed_and_unary_answers_give_the_same_conversation_turn() -> None:
    """The turn must not depend on how the stream was split into chunks."""
    stream = sse_events(
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"index": 1, "delta": {"content": "No."}}]},
        {"choices": [{"index": 0, "delta": {"content": "Let me "}}]},
        {"choices": [{"index": 0, "delta": {"content": "look."}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, **_CALL}]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {}}]}}]},
        {"choices": [], "usage": {"total_tokens": 3}},
        done=True,
    )
    pieces = [stream[at : at + 7] for at in range(0, len(stream), 7)]

    assert [chat_turn(**_CHAT_ANSWER), Turn(MODEL, "No.")] == turns_of(CHAT, *pieces, stream=True)


_BLOCKS: list[Json] = [
    {"type": "thinking", "thinking": "hm", "signature": "x"},
    {"type": "text", "text": "Let me look."},
    {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"a": 1}},
]


def test_conversation_continues_when_the_cache_marker_moves() -> None:
    """Anthropic's clients move a cache marker to the last message with each turn."""
    asked: Json = {
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "q", "cache_control": {}}]}
        ],
    }
    [turn] = turns_of(MESSAGES, json.dumps({"type": "message", "content": _BLOCKS}).encode())
    streamed = turns_of(
        MESSAGES,
        sse_events(
            {"type": "message_start", "message": {"content": []}},
            {"type": "content_block_start", "index": 0, "content_block": _BLOCKS[0]},
            {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "h"}},
            {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Let me"}},
            {"type": "content_block_delta", "delta": {"type": "text_delta", "text": " look."}},
            {"type": "content_block_start", "content_block": _BLOCKS[2] | {"input": {}}},
            {"type": "content_block_delta", "delta": {"partial_json": '{"a": 1}'}},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
            {"type": "message_stop"},
        ),
        stream=True,
    )
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "nothing"}
    follow_up = conversation_of(
        MESSAGES,
        {
            "system": "s",
            "messages": [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": _BLOCKS[1:]},
                {"role": "user", "content": [result | {"cache_control": {"type": "ephemeral"}}]},
            ],
        },
    )

    assert [turn] == streamed
    assert (conversation_of(MESSAGES, asked).name_after(turn),) == follow_up.beginnings


_PROMPT = "You are an agent.\nSecond line."
_ANSWER = {"role": "assistant", "content": "yes"}


def billing_line(call: int) -> str:
    """Return the first line of Claude Code's system prompt, which differs in each call."""
    version = f"2.1.100.{call:03x}"
    return f"x-anthropic-billing-header: cc_version={version}; cc_entrypoint=cli; cch={call:05x};"


def billed_request(form: str, call: int, *more: Json) -> tuple[str, Json]:
    """Return path and body of a call of Claude Code with the line that differs."""
    line, question = billing_line(call), {"role": "user", "content": "q"}
    block = {"type": "text", "text": line}
    prompt = {"type": "text", "text": _PROMPT, "cache_control": {"type": "ephemeral"}}
    messages = [question, *more]
    joined = f"{line}\n{_PROMPT}"
    systems: dict[str, Any] = {
        "text": joined,
        "carriage return": f"{line}\r\n{_PROMPT}",
        "one line": f"{line} {_PROMPT}",
        "blocks": [block, prompt],
        "one block": [{"type": "text", "text": joined}],
        "no checksum": f"x-anthropic-billing-header: cc_version=2.1.{call};\n{_PROMPT}",
    }
    if form in systems:
        return MESSAGES, {"system": systems[form], "messages": messages}
    if form == "message":
        return MESSAGES, {"messages": [{"role": "system", "content": joined}, *messages]}
    if form == "instructions":
        return RESPONSES, {"instructions": joined, "input": messages}
    if form == "item":
        return RESPONSES, {"input": [{"role": "developer", "content": joined}, *messages]}
    role, _, shape = form.partition(" of ")
    content = [block, prompt] if shape == "blocks" else joined
    return CHAT, {"messages": [{"role": role, "content": content}, *messages]}


@pytest.mark.parametrize(
    "form",
    [
        "text",
        "carriage return",
        "one line",
        "blocks",
        "one block",
        "no checksum",
        "message",
        "instructions",
        "item",
        "system of text",
        "system of blocks",
        "developer of text",
    ],
)
def test_changing_the_billing_line_keeps_the_conversation(form: str) -> None:
    """The billing line's checksum changes with each call; it must not count as content."""
    first = conversation_of(*billed_request(form, 0xA1B2C))
    second = conversation_of(*billed_request(form, 0xD3E4F, _ANSWER, _QUESTION))

    assert (first.name_after(Turn(MODEL, "yes")),) == second.beginnings


def test_removing_the_billing_line_keeps_the_conversation() -> None:
    """A gateway may remove Claude Code's billing line during a conversation."""
    first = conversation_of(*billed_request("blocks", 1))
    fields = {"system": _PROMPT, "messages": [{"role": "user", "content": "q"}, _ANSWER, _QUESTION]}

    assert (first.name_after(Turn(MODEL, "yes")),) == conversation_of(MESSAGES, fields).beginnings


@pytest.mark.parametrize(
    ("system", "question"),
    [
        ("{line}", "{line}\nq"),  # in a user's message
        ("You are.\n{line}", "q"),  # not at the start
        ("{line}\n{other}", "q"),  # another prompt after it
        ("x-anthropic-other-header: cch={call};", "q"),
    ],
)
def test_billing_line_is_ignored_only_at_the_start_of_the_system_prompt(
    system: str, question: str
) -> None:
    """Elsewhere the line is content that distinguishes conversations."""

    def numbered_call(number: int, *more: Json) -> Conversation:
        told = {"line": billing_line(number), "other": number, "call": number}
        asked = {"role": "user", "content": question.format(**told)}
        return conversation_of(
            MESSAGES, {"system": system.format(**told), "messages": [asked, *more]}
        )

    name = numbered_call(1).name_after(Turn(MODEL, "yes"))

    assert (name,) == numbered_call(1, _ANSWER, _QUESTION).beginnings
    assert name not in numbered_call(2, _ANSWER, _QUESTION).beginnings


def test_responses_request_with_all_earlier_items_continues_a_conversation() -> None:
    """Clients send reasoning back or omit it; the items of one answer are one turn."""
    output: list[Json] = [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "call_7", "name": "r", "arguments": ""},
    ]
    [turn] = turns_of(RESPONSES, json.dumps({"object": "response", "output": output}).encode())
    streamed = turns_of(
        RESPONSES,
        sse_events(
            {"type": "response.created", "response": {"output": []}},
            {"type": "response.output_text.delta", "delta": "Let"},
            {"type": "response.completed", "response": {"output": output}},
        ),
        stream=True,
    )
    asked = conversation_of(RESPONSES, {"instructions": "s", "input": "q"})
    answered = {"type": "function_call_output", "call_id": "call_7", "output": "nothing"}
    for sent_back in (output, output[1:], [{**output[1], "id": None}, output[2]]):
        items = [{"role": "user", "content": "q"}, *sent_back, answered]
        follow_up = conversation_of(RESPONSES, {"instructions": "s", "input": items})
        assert (asked.name_after(turn),) == follow_up.beginnings

    assert [turn] == streamed


@pytest.mark.parametrize(
    ("path", "stream", "body"),
    [
        (CHAT, False, b"no json"),
        (CHAT, False, b'{"choices": 7}'),
        (CHAT, True, sse_events({"choices": [{"delta": {"content": "half"}}]})),
        (CHAT, True, sse_events({"error": "cut"}) + b"data: {"),
        (MESSAGES, True, sse_events({"type": "message_start"})),
        (RESPONSES, True, sse_events({"type": "response.failed", "response": {"output": []}})),
        (RESPONSES, False, b"[]"),
    ],
)
def test_truncated_answer_is_not_recorded_as_a_turn(path: str, stream: bool, body: bytes) -> None:
    """A body in another format than the endpoint's answers is not recorded either."""
    reader = AnswerReader(path, stream=stream)
    reader.add(body)

    assert not reader.is_whole


@pytest.mark.parametrize("stream", [False, True])
def test_deeply_nested_tool_arguments_do_not_name_a_sub_agent(*, stream: bool) -> None:
    """A model may repeat one token until its answer is cut."""
    function = {"name": "t", "arguments": '{"a":' + "[" * 5_000}
    said_by = {"tool_calls": [{"index": 0, "id": "x", "type": "function", "function": function}]}
    reader = AnswerReader(CHAT, stream=stream)
    if stream:
        reader.add(sse_events({"choices": [{"index": 0, "delta": said_by}]}) + b"data: [DONE]\n\n")
    else:
        reader.add(json.dumps({"choices": [{"index": 0, "message": said_by}]}).encode())

    assert reader.is_whole
    assert [] == reader.prompts()


def test_empty_answer_does_not_continue_a_conversation() -> None:
    """Otherwise every call with equal messages would continue that conversation."""
    assert [] == turns_of(CHAT, b'{"choices": [{"message": {"content": "  "}}]}')


def test_request_path_without_messages_has_no_conversation() -> None:
    assert read_conversation(COMPLETIONS, {"prompt": "q"}, "t") is None


@pytest.mark.parametrize("text", ["half of a pair: \ud83d", "both: \U0001f600", "a\0b"])
def test_conversations_with_invalid_utf_8_are_distinguished(text: str) -> None:
    """JSON may contain half of a surrogate pair, which UTF-8 cannot encode."""
    question, other = ({"role": "user", "content": text + end} for end in "ab")
    named = chat_of(question).name_after(Turn(MODEL, "yes"))
    answered = {"role": "assistant", "content": "yes"}
    assert chat_of(question, answered).beginnings == (named,)
    assert chat_of(other, answered).beginnings != (named,)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "content", "id", "tool_calls", "role", "function"])
            | st.text(max_size=3),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)
_MESSAGE = st.dictionaries(
    st.sampled_from(
        ["role", "content", "tool_calls", "tool_call_id", "type", "call_id", "output", "id"]
    ),
    _VALUES,
    max_size=5,
)


@settings(
    suppress_health_check=[HealthCheck.too_slow]
)  # Hypothesis builds its Unicode tables at the first draw.
@given(st.sampled_from([CHAT, MESSAGES, RESPONSES]), st.lists(_MESSAGE, min_size=1, max_size=4))
def test_every_accepted_body_can_be_read_as_a_conversation(path: str, messages: list[Json]) -> None:
    """Recognition must not fail for a body that the endpoint accepts."""
    field = "input" if path == RESPONSES else "messages"
    body = json.dumps({"model": "m", "max_tokens": 1, "system": "s", field: messages}).encode()
    try:
        fields = parse_body(path, body, ["m"], None).fields
    except JustitiaError:
        return  # refused
    assert read_conversation(path, fields, "t") is not None
