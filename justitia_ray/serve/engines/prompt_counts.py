"""Count a model's prompt tokens in the ingress: exactly as its engine does, or by an estimate."""

import json
import logging
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from justitia_ray.config import AppConfig
from justitia_ray.errors import RequestError
from justitia_ray.observability.log_events import log_event
from justitia_ray.protocol.inference_body import (
    Conversation,
    Counting,
    InferenceBody,
    Pair,
    Prompt,
    PromptCount,
    PromptCounting,
)
from justitia_ray.serve.engines.chat_messages import NotRendered
from justitia_ray.serve.engines.chat_prompts import ChatOptions, ChatRenderer
from justitia_ray.serve.engines.prompt_cuts import chat_cuts
from justitia_ray.serve.engines.prompt_pieces import Ids, PieceCounter
from justitia_ray.serve.engines.random_models import materialise_model
from justitia_ray.units import Tokens

logger = logging.getLogger(__name__)

_BYTES_PER_TOKEN = 4
"""Typical bytes per token of English text; used if the model's tokenizer cannot be loaded."""
_TOKEN_IDS = 2**32
"""Number of token ids that can be hashed in a prefix; the engine refuses larger ids."""
_JINJA = "{}\n"
_OWN_RENDERERS = ("gpt_oss", "deepseek_v32", "deepseek_v4", "kimi_audio", "kimi_k3", "inkling")
"""Model types whose chats vLLM renders by code instead of a template (vLLM's config/model.py:736),
by prefix.
"""
_PROCESSOR_FILES = ("chat_template.json", "preprocessor_config.json", "processor_config.json")
"""Names of processor files, whose chat template vLLM prefers to the tokenizer's
(renderers/hf.py:279).
"""


class PromptCounter:
    """Counts the tokens of prompts with a model's tokenizer and chat template.

    Args:
        tokenizer: A tokenizer of transformers; None: it could not be loaded.
        options: How the engine renders chats.
        is_engines_own: Whether the engine uses this very tokenizer.
    """

    def __init__(self, tokenizer: Any, options: ChatOptions, *, is_engines_own: bool) -> None:
        self._pieces = None if tokenizer is None else PieceCounter(tokenizer)
        self._is_exact = is_engines_own and tokenizer is not None
        self._chats = None if tokenizer is None else ChatRenderer(tokenizer, options)

    def __call__(self, prompt: Prompt, body: InferenceBody, most: Tokens | None) -> PromptCounting:
        """Count the tokens of one prompt of a request body; see `CountPrompt`.

        Raises:
            RequestError: If the engine is certain to refuse the prompt.
        """
        ids = Ids() if body.wants_ids and self._is_exact else None
        if isinstance(prompt, list):
            is_named = ids is not None and all(
                type(token) is int and 0 <= token < _TOKEN_IDS for token in prompt
            )
            return PromptCount(len(prompt), ids=array("I", prompt) if is_named else None)
        if isinstance(prompt, Conversation):
            text = self._rendered_text(prompt, body)
            if text is None:
                tokens = yield from self._count_text(prompt.text, most, special=True)
                return PromptCount(tokens, is_exact=False)
            yield  # Rendering a chat takes as long as one step of counting.
            if ids is not None:
                ids.places = chat_cuts(text, prompt.messages)
            special = body.fields.get("add_special_tokens") is True
            tokens = yield from self._count_text(text, most, special=special, ids=ids)
        elif isinstance(prompt, Pair):
            tokens = yield from self._count_pair(prompt, most)
        else:
            special = body.fields.get("add_special_tokens") is not False
            tokens = yield from self._count_text(prompt, most, special=special, ids=ids)
        if ids is None or (most is not None and tokens > most):
            return PromptCount(tokens, self._is_exact)
        return PromptCount(tokens, ids=ids.tokens, cuts=tuple(ids.cuts))

    def _rendered_text(self, prompt: Conversation, body: InferenceBody) -> str | None:
        """Return a chat rendered as text; None if only the engine can render it."""
        if self._chats is None:
            return None
        self._chats.check_items(body.fields.get("input"))
        if body.effort_field is not None:
            self._chats.check_effort(_value_at(body.fields, body.effort_field), body.effort_field)
        try:
            return self._chats.render(prompt, body)
        except NotRendered:
            return None
        except RequestError:
            if body.estimated:  # The engine may render this chat differently.
                return None
            raise

    def _count_pair(self, pair: Pair, most: Tokens | None) -> Counting:
        if self._pieces is None:
            return _estimated_tokens(pair.text)
        return (yield from self._pieces.count_pair(pair.first, pair.second, most))

    def _count_text(
        self, text: str, most: Tokens | None, *, special: bool, ids: Ids | None = None
    ) -> Counting:
        if self._pieces is None:
            return _estimated_tokens(text)
        return (yield from self._pieces.count(text, most, special=special, ids=ids))


def _estimated_tokens(text: str) -> Tokens:
    return 1 + len(text.encode()) // _BYTES_PER_TOKEN


def _value_at(fields: Mapping[str, Any], place: str) -> Any:
    """Return the value at a dotted path in a body, such as `reasoning.effort`; None if absent."""
    found: Any = fields
    for name in place.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def load_model_counter(config: AppConfig) -> PromptCounter:
    """Return the prompt counter for a vLLM engine, from its options. Blocks for some seconds."""
    options = {key.replace("-", "_"): value for key, value in config.engine.vllm_args.items()}
    model = materialise_model(config.model.path, config.model.cache_dir)
    path = str(options.get("tokenizer", model))
    revision = options.get("tokenizer_revision", options.get("revision"))
    revision = None if revision is None else str(revision)
    try:
        tokenizer = _load_tokenizer(
            path, revision=revision, trusts_code=bool(options.get("trust_remote_code", False))
        )
    except Exception as error:  # vLLM will report any error itself.
        log_event(
            logger,
            logging.WARNING,
            "ingress.tokenizer_unreadable",
            model=config.model.name,
            path=path,
            reason=str(error),
        )
        tokenizer = None
    has_kind_of_its_own = _uses_mistral_tokenizer(options, path, revision)
    return PromptCounter(
        tokenizer,
        _chat_options(options, model, path, revision),
        is_engines_own=not has_kind_of_its_own,
    )


def _uses_mistral_tokenizer(
    options: Mapping[str, Any], tokenizer: str, revision: str | None
) -> bool:
    """Return whether vLLM uses Mistral's own tokenizer for a model (tokenizers/registry.py:130)."""
    mode = _tokenizer_mode(options)
    return mode == "mistral" or (
        mode == "auto" and _find_file(tokenizer, "tekken.json", revision) is not None
    )


def _tokenizer_mode(options: Mapping[str, Any]) -> str:
    return str(options.get("tokenizer_mode", "auto")).lower()


def _chat_options(
    options: Mapping[str, Any], model: str, tokenizer: str, revision: str | None
) -> ChatOptions:
    template = options.get("chat_template")
    text = None if template is None else _read_template(str(template))
    arguments = options.get("default_chat_template_kwargs") or {}
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    is_known = (
        _tokenizer_mode(options) in ("auto", "hf")
        and (template is None or text is not None)
        and not _has_code_renderer(model, options.get("revision"))
        and not any(_find_file(tokenizer, name, revision) for name in _PROCESSOR_FILES)
        and not _uses_mistral_tokenizer(options, tokenizer, revision)
    )
    return ChatOptions(
        template=text,
        content_format=str(options.get("chat_template_content_format", "auto")),
        arguments=arguments,
        drops_tools=bool(options.get("exclude_tools_when_tool_choice_none", False)),
        trusts_templates=bool(options.get("trust_request_chat_template", False)),
        is_known=is_known,
    )


def _read_template(given: str) -> str | None:
    """Return the text of a `chat_template` option: a path or the text (chat_utils.py:1492).

    The result is None for one of vLLM's own templates, whose path is not known here.
    """
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return given if any(sign in given for sign in _JINJA) else None


def _has_code_renderer(model: str, revision: Any) -> bool:
    described = _find_file(model, "config.json", revision)
    if described is None:
        return False
    kind = str(json.loads(described.read_text(encoding="utf-8")).get("model_type"))
    return kind.startswith(_OWN_RENDERERS)


def _find_file(path: str, name: str, revision: Any) -> Path | None:
    """Return the path of a model's file in its directory or on the hub; None if absent."""
    if Path(path).is_dir():
        found = Path(path, name)
        return found if found.is_file() else None
    from transformers.utils.hub import cached_file

    try:
        cached = cached_file(
            path,
            name,
            revision=revision,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    except (OSError, ValueError):  # the model is a single file of weights
        return None
    return None if cached is None else Path(cached)


def _load_tokenizer(path: str, *, revision: str | None, trusts_code: bool) -> Any:
    """Return a model's tokenizer; torch is imported only for a special tokenizer class.

    Choosing the class with AutoTokenizer imports torch, which takes seconds of CPU and 0.4 GB.
    """
    described = Path(path, "tokenizer_config.json")
    values = json.loads(described.read_text(encoding="utf-8")) if described.is_file() else {}
    if values.get("tokenizer_class") == "TokenizersBackend" and "auto_map" not in values:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(path)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, revision=revision, trust_remote_code=trusts_code)
