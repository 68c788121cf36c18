"""The table of endpoints, and which models a body may name."""

import json

import pytest

from justitia_ray.errors import RequestError, UnknownModel
from justitia_ray.protocol.endpoints import (
    ASIDE_PATHS,
    INFERENCE_PATHS,
    check_model,
    parse_body,
    prompt_text,
)
from justitia_ray.protocol.openai_body import COMPLETIONS


def test_no_path_that_controls_an_engine_is_in_the_table() -> None:
    """The application of vLLM has them beside the others; here only what is named is served."""
    asked_for_here = {path.strip("/").split("/")[-1] for path in (*INFERENCE_PATHS, *ASIDE_PATHS)}
    controls = {"sleep", "pause", "abort_requests", "load_lora_adapter", "scale_elastic_ep", "ping"}

    assert not controls & asked_for_here
    assert not set(INFERENCE_PATHS) & set(ASIDE_PATHS)


def test_adapters_are_models_of_the_same_queue() -> None:
    """A name that is one of them is passed on; without a name it is the model itself."""
    names = ("m", "poet", "lawyer")
    fields: dict[str, object] = {}
    check_model(fields, names)

    assert {"model": "m"} == fields
    assert (
        "poet"
        == parse_body(COMPLETIONS, b'{"prompt":"a","model":"poet"}', names, None).fields["model"]
    )
    with pytest.raises(UnknownModel, match="'m' and 'poet' and 'lawyer' are served here"):
        check_model({"model": "cook"}, names)
    with pytest.raises(RequestError, match="must be a string, not int"):
        check_model({"model": 1}, names)


def test_text_of_a_request_leaves_out_what_is_no_text() -> None:
    """It is the input that an application is known by; token ids say nothing to the predictor."""
    body = json.dumps({"prompt": ["a b", "c"]}).encode()
    ids = json.dumps({"prompt": [1, 2]}).encode()

    assert "a b\nc" == prompt_text(parse_body(COMPLETIONS, body, ("m",), None))
    assert "" == prompt_text(parse_body(COMPLETIONS, ids, ("m",), None))
