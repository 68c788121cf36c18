"""Write the schemas of the requests that the installed vLLM accepts, from its own models.

A schema is as lenient as pydantic is for these models: a request that it allows may still be
refused by a validator in code; a request that it forbids is never accepted by vLLM.
"""

import argparse
import json
import sys
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from justitia_ray.protocol.request_schemas import schema_file

_DIGITS = r"^\s*[+-]?[0-9_]+(\.0*)?\s*$"
_NUMBER = r"(?i)^\s*[+-]?([0-9_.]+(e[+-]?[0-9]+)?|nan|inf(inity)?)\s*$"
_TRUTH = r"(?i)^(t(rue)?|f(alse)?|y(es)?|no?|on|off|0|1)$"
_FILLED_IN = {
    # vLLM fills in these fields before it validates a request (openai/responses/protocol.py).
    "ResponseInputImageParam": ("detail",),
    "ResponseInputImage": ("detail",),
    "ResponseOutputMessage": ("id", "status"),
    "ResponseOutputMessageParam": ("id", "status"),
    "ResponseOutputText": ("annotations",),
    "ResponseOutputTextParam": ("annotations",),
    "ResponseReasoningItem": ("id",),
    "ResponseReasoningItemParam": ("id",),
}
"""Fields that vLLM's model requires but that a request may omit."""
_OMITTED_KEYWORDS = (
    *("default", "deprecated", "description", "discriminator", "examples", "format", "title"),
    "maxItems",  # an environment variable of the engine sets this field
)
"""Keywords of JSON Schema that are left out because they refuse no request by themselves."""


class LenientSchema(GenerateJsonSchema):
    """JSON Schema of the values that pydantic's lax mode accepts in a JSON text."""

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        """Accept strings of digits, floats without a fraction, and booleans as integers."""
        return _any_of_schemas(
            super().int_schema(schema), _text_pattern(_DIGITS), {"type": "boolean"}
        )

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        """Accept strings of numbers, and booleans, as floats."""
        return _any_of_schemas(
            super().float_schema(schema), _text_pattern(_NUMBER), {"type": "boolean"}
        )

    def bool_schema(self, schema: core_schema.BoolSchema) -> JsonSchemaValue:
        """Accept the words and numbers for true and false as booleans."""
        return _any_of_schemas(super().bool_schema(schema), {"enum": [0, 1]}, _text_pattern(_TRUTH))

    def generator_schema(self, schema: core_schema.GeneratorSchema) -> JsonSchemaValue:
        """Accept all iterables as lists: objects (their names) and strings (their characters)."""
        return _any_of_schemas(super().generator_schema(schema), {"type": ["object", "string"]})


def _any_of_schemas(*schemas: JsonSchemaValue) -> JsonSchemaValue:
    return {"anyOf": list(schemas)}


def _text_pattern(pattern: str) -> JsonSchemaValue:
    return {"type": "string", "pattern": pattern}


def request_models() -> dict[str, type[BaseModel]]:
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    return {
        CHAT: ChatCompletionRequest,
        COMPLETIONS: CompletionRequest,
        RESPONSES: ResponsesRequest,
        MESSAGES: AnthropicMessagesRequest,
    }


def request_schemas() -> dict[str, Any]:
    """Return the schemas of the installed vLLM's request models, by path."""
    return {path: _model_schema(model) for path, model in request_models().items()}


def _model_schema(model: type[BaseModel]) -> Any:
    schema = model.model_json_schema(schema_generator=LenientSchema)
    for name, filled_in in _FILLED_IN.items():
        if (definition := schema.get("$defs", {}).get(name)) is not None:
            definition["required"] = [
                field for field in definition.get("required", ()) if field not in filled_in
            ]
    return _without_descriptions(schema)


def _without_descriptions(schema: Any) -> Any:
    """Return a JSON schema without descriptions, with `oneOf` relaxed to `anyOf`."""
    if isinstance(schema, list):
        return [_without_descriptions(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for keyword, value in schema.items():
        if keyword in ("properties", "$defs"):
            kept[keyword] = {name: _without_descriptions(part) for name, part in value.items()}
        elif keyword == "oneOf":
            kept["anyOf"] = _without_descriptions(value)
        elif keyword not in _OMITTED_KEYWORDS:
            kept[keyword] = _without_descriptions(value)
    return kept


def vllm_version() -> str:
    """Return the version of the installed vLLM, whichever package provides it."""
    import vllm

    found: str = vllm.__version__
    return found


def schemas_as_text() -> str:
    return json.dumps(request_schemas(), separators=(",", ":"), sort_keys=True) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if the file is out of date"
    )
    check = parser.parse_args().check
    installed = schema_file(vllm_version())
    text = schemas_as_text()
    if not check:
        installed.parent.mkdir(exist_ok=True)
        installed.write_text(text, encoding="utf-8")
    elif not installed.is_file() or installed.read_text(encoding="utf-8") != text:
        sys.exit(f"{installed.name} is not of this vLLM: run scripts/write_request_schemas")


if __name__ == "__main__":
    main()
