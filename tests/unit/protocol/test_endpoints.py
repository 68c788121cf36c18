"""The table of HTTP endpoints, and the model names that a body may carry."""

import json
from typing import Any

import pytest

from justitia_ray.errors import RequestError, UnknownModel
from justitia_ray.protocol.endpoints import (
    INFERENCE_PATHS,
    UNSCHEDULED_PATHS,
    name_model,
    parse_body,
    prompt_text,
    read_tier,
)
from justitia_ray.protocol.generation_bodies import COMPLETIONS


def test_endpoint_table_has_no_path_that_controls_an_engine() -> None:
    """VLLM's own server also has paths that stop or reconfigure an engine."""
    paths = (*INFERENCE_PATHS, *UNSCHEDULED_PATHS)
    asked_for_here = {path.strip("/").split("/")[-1] for path in paths}
    controls = {"sleep", "pause", "abort_requests", "load_lora_adapter", "scale_elastic_ep", "ping"}

    assert not controls & asked_for_here
    assert not set(INFERENCE_PATHS) & set(UNSCHEDULED_PATHS)


def test_adapter_uses_the_queue_of_its_base_model() -> None:
    """A request for a LoRA adapter waits in the base model's queue and keeps the adapter's name."""
    names = ("m", "poet", "lawyer")
    fields: dict[str, object] = {}
    named = name_model(fields, b"{}", names)

    assert {"model": "m"} == fields == json.loads(named)
    assert (
        "poet"
        == parse_body(COMPLETIONS, b'{"prompt":"a","model":"poet"}', names, None).fields["model"]
    )
    with pytest.raises(UnknownModel, match="'m' and 'poet' and 'lawyer' are served here"):
        name_model({"model": "cook"}, b"", names)
    with pytest.raises(RequestError, match="must be a string, not int"):
        name_model({"model": 1}, b"", names)


def test_request_body_that_names_its_model_is_unchanged() -> None:
    """Encoding a body again takes as long as parsing it and may change its bytes."""
    body = b'{ "model":"m", "prompt" : "\\u00e9\xc3\xa9", "seed": 123456789012345678901234567890 }'
    unnamed = b'{"prompt": "a", "model": null}'

    assert body is parse_body(COMPLETIONS, body, ("m",), None).payload
    parsed = parse_body(COMPLETIONS, unnamed, ("m",), None)
    assert {"prompt": "a", "model": "m"} == json.loads(parsed.payload) == parsed.fields


def test_text_of_a_request_is_joined_from_its_text_parts() -> None:
    """The predictor reads text and cannot use token ids."""
    body = json.dumps({"prompt": ["a b", "c"]}).encode()
    ids = json.dumps({"prompt": [1, 2]}).encode()

    assert "a b\nc" == prompt_text(parse_body(COMPLETIONS, body, ("m",), None))
    assert "" == prompt_text(parse_body(COMPLETIONS, ids, ("m",), None))


@pytest.mark.parametrize(
    ("body", "tier"),
    [
        ({}, "default"),
        ({"service_tier": None}, "default"),
        ({"service_tier": "auto"}, "default"),
        ({"service_tier": "standard_only"}, "default"),
        ({"service_tier": "flex"}, "flex"),
        ({"service_tier": "priority"}, "priority"),
    ],
)
def test_tier_is_read_from_openai_and_anthropic_requests(body: dict[str, Any], tier: str) -> None:
    """Clients send `auto` by default, so `auto` means the default tier."""
    assert tier == read_tier(body)


@pytest.mark.parametrize("asked", ["fast", "scale", "gold", 1, ["flex"]])
def test_unknown_tier_is_read_as_the_default_tier(asked: object) -> None:
    """SDKs send the tiers of their own service, and vLLM accepts any text."""
    assert "default" == read_tier({"service_tier": asked})
