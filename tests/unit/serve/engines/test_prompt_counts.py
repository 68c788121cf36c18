"""Prompt tokens by a model's tokenizer and chat template, and requests that the count refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import pytest

from justitia_ray.config import AppConfig
from justitia_ray.core.prefixes import read_prefixes
from justitia_ray.errors import RequestError
from justitia_ray.protocol.endpoints import parse_body
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from justitia_ray.protocol.inference_body import PromptCount, PromptSize
from justitia_ray.serve.engines.chat_prompts import ChatOptions, ChatRenderer
from justitia_ray.serve.engines.factory import load_prompt_counter
from justitia_ray.serve.ingress.prefix_names import PrefixNames
from justitia_ray.serve.ingress.token_counter import TokenCounter
from justitia_ray.serve.transport.handshake import Key, Keyring

_TEMPLATE = Path(__file__).parents[3] / "conformance" / "strict_template.jinja"
_HI = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a word tokenizer without a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"?": 0}, "?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    directory = tmp_path_factory.mktemp("model")
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(str(directory))
    return directory


def strict_config(tokenizer_folder: Path, **options: Any) -> AppConfig:
    """Return the configuration of a model with a strict chat template."""
    engine = {"vllm_args": {"chat_template": str(_TEMPLATE), **options}}
    model = {"name": "m", "path": str(tokenizer_folder)}
    return AppConfig.parse({"model": model, "engine": engine})


def prompt_count(
    tokenizer_folder: Path, path: str, fields: dict[str, Any], **options: Any
) -> PromptCount:
    """Return the token count of a body's only prompt."""
    config = strict_config(tokenizer_folder, **options)
    body = parse_body(path, json.dumps(fields).encode(), ("m",), None)
    (prompt,) = body.prompts
    counting = load_prompt_counter(config)(prompt, body, None)
    while True:
        try:
            next(counting)
        except StopIteration as end:
            count: PromptCount = end.value
            return count


@pytest.mark.parametrize("token", [2**32, 10**30, -1, True, 1.0])
def test_engine_and_not_the_token_counter_refuses_impossible_token_ids(
    tokenizer_folder: Path, token: float
) -> None:
    """Such a prompt has no prefix names, which are computed from token ids of 32 bits."""
    config = AppConfig.parse({"model": {"name": "m", "path": str(tokenizer_folder)}})
    body = parse_body(COMPLETIONS, json.dumps({"prompt": [1, token]}).encode(), ("m",), None)
    counting = load_prompt_counter(config)(body.prompts[0], replace(body, wants_ids=True), None)
    with pytest.raises(StopIteration) as end:
        next(counting)

    assert (2, None) == (end.value.value.tokens, end.value.value.ids)


class RefusingTokenizer:
    """Tokenizer that refuses every reasoning effort and counts the chats it renders."""

    rendered = 0

    def get_chat_template(self, template: str | None, tools: Any) -> str:
        return ""

    def apply_chat_template(
        self, messages: Any, reasoning_effort: str | None = None, **arguments: Any
    ) -> str:
        self.rendered += 1
        if reasoning_effort is not None:
            raise jinja2.TemplateError("no such effort")
        return "hi"


def chat_fields(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), **more}


def test_chat_template_of_the_options_is_rendered(tokenizer_folder: Path) -> None:
    assert PromptCount(3) == prompt_count(tokenizer_folder, CHAT, chat_fields(_HI))
    literal = "{% for m in messages %}{{ m.content }} {% endfor %}"
    assert PromptCount(1) == prompt_count(
        tokenizer_folder, CHAT, chat_fields(_HI), chat_template=literal
    )


def test_chat_template_receives_the_requests_template_arguments(tokenizer_folder: Path) -> None:
    assert PromptCount(2) == prompt_count(
        tokenizer_folder, CHAT, chat_fields(_HI, add_generation_prompt=False)
    )
    template = "{{ mood }} {% for m in messages %}{{ m.content }} {% endfor %}"
    options = {"chat_template": template, "default_chat_template_kwargs": '{"mood": "a b"}'}
    assert PromptCount(3) == prompt_count(tokenizer_folder, CHAT, chat_fields(_HI), **options)
    asked = chat_fields(_HI, chat_template_kwargs={"mood": "a b c"})
    assert PromptCount(4) == prompt_count(tokenizer_folder, CHAT, asked, **options)


def test_chat_template_that_reads_message_parts_receives_parts(tokenizer_folder: Path) -> None:
    template = (
        "{% for m in messages %}{% for part in m.content %}{{ part.text }} {% endfor %}{% endfor %}"
    )

    assert PromptCount(1) == prompt_count(
        tokenizer_folder, CHAT, chat_fields(_HI), chat_template=template
    )


def test_request_is_accepted_although_its_chat_template_fails(tokenizer_folder: Path) -> None:
    """The engine's own renderer may succeed where the ingress's template fails."""
    failing = "{{ messages[7].content | items }}"

    assert not prompt_count(
        tokenizer_folder, CHAT, chat_fields(_HI), chat_template=failing
    ).is_exact
    assert not prompt_count(
        tokenizer_folder, CHAT, chat_fields(_HI), tokenizer_mode="deepseek_v32"
    ).is_exact
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    assert not prompt_count(tokenizer_folder, CHAT, chat_fields(image)).is_exact


async def test_prompt_with_an_image_has_no_prefix_names(
    tokenizer_folder: Path,
) -> None:
    """Only the engine knows the tokens of an image, and so the position of later prefixes."""
    keyring = Keyring()
    keyring.add(Key("k", b"s" * 32))
    counter = TokenCounter(load_prompt_counter(strict_config(tokenizer_folder)))
    counter.names = PrefixNames("tenant", keyring)
    counter.names.block_size = 1

    async def size_of(*parts: dict[str, Any]) -> PromptSize:
        fields = chat_fields({"role": "user", "content": [*parts]})
        body = parse_body(CHAT, json.dumps(fields).encode(), ("m",), None)
        return await counter.prompt_size(body, "t", None)

    text = {"type": "text", "text": "a b c d"}
    image = {"type": "image_url", "image_url": {"url": "x"}}
    without, with_image = await size_of(text), await size_of(text, image)
    counter.close()

    assert read_prefixes(without.prefixes, without.total_tokens)
    assert without.is_exact
    assert b"" == with_image.prefixes
    assert not with_image.is_exact


@pytest.mark.parametrize("role", ["critic", "function"])
def test_exception_raised_by_a_chat_template_is_a_client_error(
    tokenizer_folder: Path, role: str
) -> None:
    with pytest.raises(RequestError, match=f"refuses the messages: Unexpected message role {role}"):
        prompt_count(tokenizer_folder, CHAT, chat_fields({"role": role, "content": "x"}))


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, chat_fields(_HI, reasoning_effort="xhigh"), "reasoning_effort"),
        (RESPONSES, {"input": "hi", "reasoning": {"effort": "xhigh"}}, "reasoning.effort"),
        (
            MESSAGES,
            chat_fields(_HI, max_tokens=1, output_config={"effort": "max"}),
            "output_config.effort",
        ),
    ],
)
def test_error_names_the_reasoning_effort_that_the_template_refuses(
    tokenizer_folder: Path, path: str, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(RequestError, match="must be low, medium or high") as refused:
        prompt_count(tokenizer_folder, path, fields)

    assert param == refused.value.param


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, chat_fields(_HI, reasoning={"effort": "xhigh"}, output_config={"effort": "xhigh"})),
        (RESPONSES, {"input": "hi", "reasoning_effort": "xhigh", "reasoning": "xhigh"}),
        (MESSAGES, chat_fields(_HI, max_tokens=1, reasoning={"effort": "xhigh"})),
    ],
)
def test_reasoning_effort_is_ignored_on_other_paths(
    tokenizer_folder: Path, path: str, fields: dict[str, Any]
) -> None:
    assert 0 < prompt_count(tokenizer_folder, path, fields).tokens


def test_number_of_cached_reasoning_efforts_is_bounded(tokenizer_folder: Path) -> None:
    """Long efforts are not checked, and only the latest of the others are remembered."""
    tokenizer = RefusingTokenizer()
    renderer = ChatRenderer(tokenizer, ChatOptions(content_format="string"))
    renderer.check_effort("x" * 33, "reasoning_effort")
    assert 0 == tokenizer.rendered

    for number in (*range(65), 64, 0):
        with pytest.raises(RequestError):
            renderer.check_effort(str(number), "reasoning_effort")

    once, twice = 2, 4  # Once without the reasoning effort, and once with it.
    assert 64 * once + twice == tokenizer.rendered


def test_response_items_refused_by_the_template_are_still_counted(tokenizer_folder: Path) -> None:
    """The count is an estimate: the engine moves system messages to the front first."""
    middle = chat_fields(_HI, {"role": "system", "content": "x"}, _HI, max_tokens=1)

    assert not prompt_count(tokenizer_folder, MESSAGES, middle).is_exact


def test_chat_template_in_a_request_needs_the_operators_permission(
    tokenizer_folder: Path,
) -> None:
    own = chat_fields(_HI, chat_template="{{ messages }}")

    with pytest.raises(RequestError, match="trust_request_chat_template is off") as refused:
        prompt_count(tokenizer_folder, CHAT, own)
    assert "chat_template" == refused.value.param
    assert not prompt_count(tokenizer_folder, CHAT, own, trust_request_chat_template=True).is_exact


def test_token_count_includes_tools_unless_options_exclude_them(tokenizer_folder: Path) -> None:
    body = chat_fields(
        _HI, tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="none"
    )

    assert 3 < prompt_count(tokenizer_folder, CHAT, body).tokens
    options = {"exclude_tools_when_tool_choice_none": True}
    assert PromptCount(3) == prompt_count(tokenizer_folder, CHAT, body, **options)


def test_caller_chooses_whether_special_tokens_are_added(tokenizer_folder: Path) -> None:
    body = {"prompt": "a b", "add_special_tokens": False}

    assert PromptCount(2) == prompt_count(tokenizer_folder, COMPLETIONS, body)


def test_prompt_is_estimated_for_a_model_without_a_readable_tokenizer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An ingress must start even if only the engine can read the tokenizer's format."""
    (tmp_path / "tokenizer_config.json").write_text("{}")
    found = prompt_count(tmp_path, COMPLETIONS, {"prompt": "a" * 40})

    assert PromptCount(11, is_exact=False) == found
    assert "tokenizer_unreadable" in caplog.text
    assert PromptCount(2) == prompt_count(tmp_path, COMPLETIONS, {"prompt": [1, 2]})
