"""Requests that vLLM's schemas forbid are refused with field, value and allowed values."""

import json
from typing import Any, ClassVar

import pytest
from jsonschema_rs import Draft202012Validator

from justitia_ray.errors import RequestError
from justitia_ray.protocol import request_schemas
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from justitia_ray.protocol.pooling_bodies import EMBEDDINGS
from justitia_ray.protocol.request_schemas import RequestSchemas, schema_file

_HI = {"role": "user", "content": "hi"}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
_CUSTOM = {"name": "f", "input_schema": {}}


@pytest.fixture(scope="module")
def schemas() -> RequestSchemas:
    return RequestSchemas(json.loads(schema_file("0.32.0").read_text()))


def chat_request(*messages: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    return CHAT, {"messages": list(messages or [_HI]), **more}


def completion_request(prompt: Any = "a", **more: Any) -> tuple[str, dict[str, Any]]:
    return COMPLETIONS, {"prompt": prompt, **more}


def response_request(given: Any = "a", **more: Any) -> tuple[str, dict[str, Any]]:
    return RESPONSES, {"input": given, **more}


def message_request(*messages: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    return MESSAGES, {"model": "m", "max_tokens": 5, "messages": list(messages or [_HI]), **more}


@pytest.mark.parametrize(
    ("request_", "param", "words"),
    [
        (chat_request(seed="x"), "seed", "seed is 'x': an integer is allowed"),
        (chat_request(seed=2**64), "seed", "at most 9223372036854775807 is allowed"),
        (chat_request(temperature="hot"), "temperature", "'hot': a number is allowed"),
        (chat_request(user=5), "user", "user is 5: a string is allowed"),
        (chat_request(logit_bias=[5]), "logit_bias", r"\[5\]: an object is allowed"),
        (
            chat_request(logit_bias={"5": "a lot"}),
            "logit_bias[5]",
            "is 'a lot': a number is allowed",
        ),
        (chat_request(cache_salt=""), "cache_salt", "at least 1 characters is allowed"),
        (
            chat_request(reasoning_effort="extreme"),
            "reasoning_effort",
            "'extreme': one of 'none', 'minimal', .* is allowed",
        ),
        (chat_request({"content": "x"}), "messages[0].role", "is missing"),
        (
            chat_request({"role": 3, "content": "x"}),
            "messages[0].role",
            "is 3: a string is allowed",
        ),
        (
            chat_request(_HI, {"role": "user", "content": None}),
            "messages[1].content",
            "a string or a list",
        ),
        (
            chat_request({"role": "assistant", "tool_calls": [{"id": "c", "type": "function"}]}),
            "messages[0].tool_calls[0].function",
            "is missing: an object of type 'function' needs it here",
        ),
        (chat_request(tools={}), "tools", "a list is allowed"),
        (chat_request(tools=[_TOOL, "f"]), "tools[1]", "is 'f': an object is allowed"),
        (
            chat_request(tools=[{"type": "web_search"}]),
            "tools[0].function",
            "is missing: an object of type 'web_search' needs it here",
        ),
        (
            chat_request(response_format={"type": "xml"}),
            "response_format.type",
            "'xml': one of 'text'",
        ),
        (completion_request([-1]), "prompt[0]", "is -1: at least 0"),
        (completion_request(n=None), "n", "an integer is allowed"),
        (completion_request(stop=[None]), "stop[0]", "a string is allowed"),
        (response_request(tools=None), "tools", "a list is allowed"),
        (response_request(service_tier="fast"), "service_tier", "one of 'auto', 'default', 'flex'"),
        (
            response_request([{"type": "telepathy"}]),
            "input[0].type",
            "'telepathy': one of 'message', ",
        ),
        (
            response_request([{"type": "message", "role": "critic", "content": "x"}]),
            "input[0].role",
            "'critic': one of 'user', 'assistant', 'system', 'developer' is allowed",
        ),
        (response_request(reasoning={"effort": "extreme"}), "reasoning.effort", "one of 'none'"),
        (response_request(metadata={"a": 1}), "metadata.a", "a string is allowed"),
        (
            message_request(tools=[_CUSTOM, {"type": "bash_20250124", "name": "bash"}]),
            "tools[1].input_schema",
            "is missing: an object of type 'bash_20250124' needs it here",
        ),
        (
            message_request({"role": "user", "content": [{"type": "document"}]}),
            "messages[0].content[0].type",
            "'document': one of 'text', 'image', 'tool_use'",
        ),
        (
            message_request(output_config={"effort": "minimal"}),
            "output_config.effort",
            "one of 'low'",
        ),
        (
            message_request(thinking={"type": "enabled", "budget_tokens": 5}, max_tokens=9),
            None,
            "1024",
        ),
    ],
)
def test_error_names_the_violation_of_vllms_request_models(
    schemas: RequestSchemas, request_: tuple[str, dict[str, Any]], param: str | None, words: str
) -> None:
    with pytest.raises(RequestError, match=words) as refused:
        schemas.check(*request_)

    assert param is None or param == refused.value.param
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize(
    ("request_", "param", "words"),
    [
        (chat_request(tools=[]), "tools", "a list of at least one tool, or no such field"),
        (chat_request(tool_choice="auto"), "tool_choice", "it needs tools"),
        (chat_request(tools=[_TOOL], tool_choice="any"), "tool_choice", "none, auto, required or"),
        (
            chat_request(tools=[_TOOL], tool_choice={"type": "function"}),
            "tool_choice",
            "in the form",
        ),
        (
            chat_request(
                tools=[_TOOL], tool_choice={"type": "function", "function": {"name": "g"}}
            ),
            "tool_choice",
            "'g': a function of tools is allowed: 'f'",
        ),
        (
            chat_request(stream_options={"include_usage": True}),
            "stream_options",
            "only with stream",
        ),
        (chat_request(top_logprobs=2), "top_logprobs", "needs logprobs: true"),
        (chat_request(prompt_logprobs=1, stream=True), "prompt_logprobs", "a stream has none"),
        (
            chat_request(continue_final_message=True),
            "continue_final_message",
            "add_generation_prompt",
        ),
        (
            chat_request(response_format={"type": "json_schema"}),
            "response_format",
            "json_schema is miss",
        ),
        (chat_request(temperature=-1), "temperature", r"temperature is -1: \[0, 2\] is allowed"),
        (chat_request(top_p=0), "top_p", r"\(0, 1\] is allowed"),
        (completion_request(min_tokens=5, max_tokens=2), "min_tokens", "at most max_tokens, 2"),
        (chat_request(min_tokens=5, max_tokens=2), "min_tokens", "at most max_tokens, 2"),
        (
            chat_request(min_tokens=5, max_tokens=9, max_completion_tokens=2),
            "min_tokens",
            "at most max_completion_tokens, 2",
        ),
        (completion_request(logprobs=-2), "logprobs", "at least 0, or -1"),
        (response_request(tool_choice="required"), "tool_choice", "it needs tools"),
        (
            response_request(
                tools=[{"type": "custom", "name": "patch", "format": {"type": "grammar"}}],
            ),
            "tools[0].format",
            "'patch' with a grammar: the engine takes custom tools of free text only",
        ),
        (message_request(tool_choice={"type": "tool"}), "tool_choice.name", "'tool' needs it"),
        (
            message_request(
                tools=[{"name": "f", "input_schema": {"type": "object"}}],
                tool_choice={"type": "tool", "name": "g"},
            ),
            "tool_choice.name",
            "'g': one of tools is allowed: 'f'",
        ),
        (
            message_request(thinking={"type": "enabled", "budget_tokens": 2048}, max_tokens=2048),
            "thinking.budget_tokens",
            "less than max_tokens, 2048",
        ),
    ],
)
def test_error_names_the_violation_of_checks_in_vllms_code(
    schemas: RequestSchemas, request_: tuple[str, dict[str, Any]], param: str, words: str
) -> None:
    with pytest.raises(RequestError, match=words) as refused:
        schemas.check(*request_)

    assert param == refused.value.param


@pytest.mark.parametrize(
    "request_",
    [
        chat_request(),
        chat_request(max_tokens="5", temperature="0.5", stream="yes", seed=5.0, n=True, logprobs=1),
        chat_request(foo={"bar": 1}, service_tier="fast", metadata={"a": "b"}),
        chat_request(tools=None, tool_choice=None),
        chat_request(tool_choice="none"),
        chat_request(tools=[_TOOL], tool_choice={"type": "function", "function": {"name": "f"}}),
        chat_request(stop=["a"] * 100),
        chat_request({"role": "critic", "content": "x"}, {"role": "assistant", "tool_calls": {}}),
        chat_request(
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
        ),
        chat_request({"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]}),
        completion_request([1, 2]),
        completion_request([1.0, "2", True]),
        completion_request([["1", 2]]),
        completion_request(max_tokens=None, echo=None),
        completion_request(max_tokens=100, min_tokens=10, max_completion_tokens=5),
        chat_request(max_tokens=5, min_tokens=10, max_completion_tokens=100),
        response_request(
            [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]
        ),
        response_request([{"type": "reasoning", "summary": []}]),
        response_request(
            [
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "x"}],
                }
            ]
        ),
        response_request(tools=[], tool_choice="auto"),
        message_request(tools=[_CUSTOM | {"cache_control": {"type": "ephemeral"}}], service_tier=1),
        message_request(presence_penalty=7, min_tokens=-1),
        (EMBEDDINGS, {"input": 5}),
    ],
)
def test_request_that_vllm_accepts_passes_the_schemas(
    schemas: RequestSchemas, request_: tuple[str, dict[str, Any]]
) -> None:
    """Pydantic's lax mode parses numbers in strings and ignores unknown fields."""
    schemas.check(*request_)


class CountingValidator:
    """Validator that records the JSON length of each value whose errors it explains."""

    explained: ClassVar[list[int]] = []

    def __init__(self, schema: Any) -> None:
        self._validator = Draft202012Validator(schema)

    def is_valid(self, body: Any) -> bool:
        return self._validator.is_valid(body)

    def iter_errors(self, body: Any) -> Any:
        self.explained.append(len(json.dumps(body)))
        return self._validator.iter_errors(body)


@pytest.fixture
def counting_schemas(monkeypatch: pytest.MonkeyPatch) -> RequestSchemas:
    """Return request schemas that record the length of each value whose errors they explain."""
    monkeypatch.setattr(request_schemas, "Draft202012Validator", CountingValidator)
    monkeypatch.setattr(CountingValidator, "explained", [])
    return RequestSchemas(json.loads(schema_file("0.32.0").read_text()))


_BAD = {"role": "user", "content": 5}
_BAD_ITEM = {"type": "message", "role": "user", "content": [{"type": "input_text"}]}


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (chat_request(*[_BAD] * 500), "messages[0].content"),
        (chat_request(*[_HI] * 500, _BAD, *[_HI] * 500), "messages[500].content"),
        (chat_request(_HI, {"role": "user", "content": [5] * 80_000}), "messages[1].content[0]"),
        (
            message_request(
                {"role": "user", "content": [{"type": "text", "text": "a"}] * 99 + [5]}
            ),
            "messages[0].content[99]",
        ),
        (chat_request(*[_HI] * 9, {"role": 5, "content": "x" * 250_000}), "messages[9].role"),
        (
            chat_request({"role": 5, "content": "x", **{str(n): n for n in range(999)}}),
            "messages[0].role",
        ),
        (chat_request(logit_bias={str(number): "a lot" for number in range(999)}), "logit_bias[0]"),
        (chat_request(tools=[_TOOL] * 99 + ["f"] * 99), "tools[99]"),
        (completion_request([1] * 10_000 + ["x"]), "prompt[10000]"),
        (completion_request([[1] * 100] * 100 + [[1, -1]]), "prompt[100]"),
        (response_request([_BAD_ITEM] * 20), "input[0].content[0].text"),
        (response_request([_HI] * 99 + [_BAD_ITEM]), "input[99].content[0].text"),
        (response_request(tools=[5] * 10_000), "tools[0]"),
        (response_request(metadata={str(number): 5 for number in range(999)}), "metadata[0]"),
    ],
)
def test_validation_error_explains_only_the_invalid_item(
    counting_schemas: RequestSchemas, request_: tuple[str, dict[str, Any]], param: str
) -> None:
    """The full list of errors in every variant of a union would block the event loop."""
    with pytest.raises(RequestError) as refused:
        counting_schemas.check(*request_)

    assert param == refused.value.param
    assert [True] == [length < 300 for length in CountingValidator.explained]


def test_long_or_deep_value_is_refused_without_an_explanation(
    counting_schemas: RequestSchemas,
) -> None:
    deep: Any = {"type": 5}
    for _ in range(300):
        deep = {"type": "x", "content": [deep]}
    for item in (deep, {"content": [5], "x" * 250_000: 5, "role": "y" * 250_000}):
        with pytest.raises(RequestError):
            counting_schemas.check(*response_request([item]))

    with pytest.raises(RequestError, match="model of this path's requests allows no such body"):
        counting_schemas.check(*response_request([deep]))
    assert [True] == [length < 300 for length in CountingValidator.explained]


def test_unknown_vllm_release_has_no_request_schemas() -> None:
    """An engine of another release validates requests itself."""
    assert not schema_file("0.26.0").exists()
    assert schema_file("0.32.1") == schema_file("0.32.0")
