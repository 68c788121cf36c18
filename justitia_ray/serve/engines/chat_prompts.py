"""Render a chat's prompt as vLLM does: with the operator's or the tokenizer's template.

A chat is refused here only if the template itself raises an error (`raise_exception`), as it would
in the engine. Any other failure may come from a difference between this code and the engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jinja2
import jinja2.nodes

from justitia_ray.errors import RequestError, shown_short
from justitia_ray.protocol.inference_body import Conversation, InferenceBody
from justitia_ray.serve.engines.chat_messages import (
    NotRendered,
    developers_as_system,
    template_arguments,
    template_messages,
    template_tools,
)

_OPENAI, _STRING = "openai", "string"
"""Formats of a chat's contents: lists of parts, or text (vLLM's `chat_template_content_format`)."""
_ITEMS = (
    *("message", "reasoning", "function_call", "function_call_output"),
    *("custom_tool_call", "custom_tool_call_output"),
)
_MOST_EFFORTS = 64
_LONGEST_EFFORT = 32
"""Maximum number of reasoning efforts in the cache, and of characters of each, because callers may
send any text.
"""
_HELLO = ({"role": "user", "content": "Hi"},)


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Options of `vllm serve` that determine how chats are rendered as prompts."""

    template: str | None = None
    """Chat template, as vLLM's option `chat_template`; None: the tokenizer's own template."""
    content_format: str = "auto"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template, as vLLM's option `default_chat_template_kwargs`."""
    drops_tools: bool = False
    """Whether tools are left out if the request forbids them (vLLM's
    `exclude_tools_when_tool_choice_none`).
    """
    trusts_templates: bool = False
    """Whether requests may bring their own template (vLLM's `trust_request_chat_template`)."""
    is_known: bool = True
    """Whether the engine renders chats with a Jinja template that this process can read."""


class ChatRenderer:
    """Renders chats as text with the chat template of a tokenizer."""

    def __init__(self, tokenizer: Any, options: ChatOptions) -> None:
        self._tokenizer = tokenizer
        self._options = options
        self._formats: dict[bool, tuple[bool, ...]] = {}
        """Formats of message contents that the chat template may read, likeliest first, by whether
        the chat has tools: lists of parts (True) or text (False).
        """
        self._efforts: dict[str, str | None] = {}
        """Error of the chat template for each cached reasoning effort, or None if it accepts the
        effort; newest last.
        """

    def render(self, prompt: Conversation, body: InferenceBody) -> str:
        """Return the text of a chat, as the engine tokenizes it.

        Raises:
            RequestError: If the engine is certain to refuse the chat.
            NotRendered: If only the engine can render it.
        """
        fields = body.fields
        self._check_own_template(fields)
        if not self._options.is_known or fields.get("chat_template"):
            raise NotRendered
        tools = template_tools(prompt.tools)
        if self._options.drops_tools and fields.get("tool_choice") == "none":
            tools = None
        arguments = template_arguments(fields, self._options.arguments)
        try:
            return self._apply_template(prompt.messages, tools, arguments)
        except jinja2.TemplateError as error:
            raise _template_refusal(error, "messages", "the messages") from None

    def check_items(self, items: Any) -> None:
        """Raise RequestError for items of a Responses request that the engine cannot render.

        vLLM's schema accepts all of OpenAI's items, but its code only items of functions and custom
        tools (openai/responses/utils.py:311).

        Raises:
            RequestError: If the engine cannot render an item; `param` names it.
        """
        if not self._options.is_known or not isinstance(items, list):
            return
        for position, item in enumerate(items):
            kind = item.get("type") if isinstance(item, dict) else None
            if kind == "reasoning" and item.get("encrypted_content"):
                place = f"input[{position}].encrypted_content"
                raise RequestError(f"{place}: the engine reads no encrypted reasoning", place)
            if kind is not None and kind not in _ITEMS and "role" not in item:
                place = f"input[{position}].type"
                raise RequestError(
                    f"{place} is {shown_short(kind)}: one of {', '.join(_ITEMS)} is allowed", place
                )

    def check_effort(self, effort: Any, field_name: str) -> None:
        """Raise RequestError for a reasoning effort that the chat template always refuses.

        Args:
            effort: The requested effort; None and long texts are not checked.
            field_name: The body's field with the effort.

        Raises:
            RequestError: If the template refuses the effort but accepts the chat without it.
        """
        if not isinstance(effort, str) or not self._options.is_known:
            return
        # An effort too long for the cache is checked when the whole chat is rendered.
        if len(effort) > _LONGEST_EFFORT:
            return
        if effort not in self._efforts:
            if len(self._efforts) >= _MOST_EFFORTS:
                del self._efforts[next(iter(self._efforts))]
            self._efforts[effort] = self._effort_refusal(effort)
        if (reason := self._efforts[effort]) is not None:
            raise RequestError(
                f"{field_name} is {shown_short(effort)}: the chat template refuses it: {reason}",
                field_name,
            )

    def _effort_refusal(self, effort: str) -> str | None:
        plain = template_arguments({}, self._options.arguments)
        asked = template_arguments({"reasoning_effort": effort}, self._options.arguments)
        try:
            self._apply_template(_HELLO, None, plain)
        except (jinja2.TemplateError, NotRendered):
            return None
        try:
            self._apply_template(_HELLO, None, asked)
        except jinja2.TemplateError as error:
            return str(error)
        except NotRendered:
            pass
        return None

    def _check_own_template(self, fields: Mapping[str, Any]) -> None:
        """Refuse a chat template in the request (vLLM's renderers/online_renderer.py:560)."""
        if self._options.trusts_templates:
            return
        asked = fields.get("chat_template_kwargs")
        for holder in (fields, asked if isinstance(asked, dict) else {}):
            if holder.get("chat_template") is not None:
                raise RequestError(
                    "chat_template is not allowed in a request: the engine's option"
                    " trust_request_chat_template is off",
                    "chat_template",
                )

    def _apply_template(
        self,
        messages: tuple[dict[str, Any], ...],
        tools: list[Any] | None,
        arguments: Mapping[str, Any],
    ) -> str:
        template = self._template_for(tools)
        refusal: Exception | None = None
        for parts_stay in self._likely_formats(template, tools is not None):
            ready = developers_as_system(
                template_messages(messages, parts_stay=parts_stay), template
            )
            try:
                text: str = self._tokenizer.apply_chat_template(
                    ready, tools=tools, chat_template=template, tokenize=False, **arguments
                )
            except Exception as error:  # A chat template may raise any exception.
                refusal = refusal or error
            else:
                return text
        if type(refusal) is jinja2.TemplateError:  # the template refused the chat
            raise refusal
        raise NotRendered

    def _template_for(self, tools: list[Any] | None) -> str:
        try:
            found: str = self._tokenizer.get_chat_template(self._options.template, tools=tools)
        except Exception as error:
            # The engine may have its own chat template for this type of model.
            raise NotRendered from error
        return found

    def _likely_formats(self, template: str, has_tools: bool) -> tuple[bool, ...]:
        if self._options.content_format != "auto":
            return (self._options.content_format == _OPENAI,)
        if has_tools not in self._formats:
            parts_stay = _iterates_over_parts(template)
            self._formats[has_tools] = (parts_stay, not parts_stay)
        return self._formats[has_tools]


def _template_refusal(error: Exception, param: str, what: str) -> RequestError:
    return RequestError(f"the chat template refuses {what}: {error}", param)


def _iterates_over_parts(template: str) -> bool:
    """Return whether a chat template iterates over content parts (vLLM's renderers/hf.py:491)."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    try:
        tree = _compile_jinja_template(template).environment.parse(template)
    except jinja2.TemplateError:
        return False
    return any(_refers_to_content(loop.iter) for loop in tree.find_all(jinja2.nodes.For))


def _refers_to_content(node: jinja2.nodes.Node | None) -> bool:
    while isinstance(node, jinja2.nodes.Filter | jinja2.nodes.Test):
        node = node.node
    if isinstance(node, jinja2.nodes.Getitem):
        if isinstance(node.arg, jinja2.nodes.Slice):
            return _refers_to_content(node.node)
        return isinstance(node.arg, jinja2.nodes.Const) and node.arg.value == "content"
    if isinstance(node, jinja2.nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, jinja2.nodes.Name) and node.name == "content"
