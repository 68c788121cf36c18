"""A user's own history, line by line."""

import json
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.predictor.input_features import features_of
from justitia_ray.predictor.own_history import read_history

LINE: dict[str, Any] = {
    "class": "report",
    "input": "Summarise this.",
    "inferences": [
        {"prompt_tokens": 10, "output_tokens": 4},
        {"prompt_tokens": 3, "output_tokens": 2},
    ],
}


def file_of(tmp_path: Path, *lines: dict[str, Any] | str) -> Path:
    """Write lines to a file."""
    path = tmp_path / "history.jsonl"
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(text + "\n" for text in texts))
    return path


def test_cost_follows_from_the_inferences(tmp_path: Path) -> None:
    """Users have token counts, not KV token-time."""
    (application,) = read_history(file_of(tmp_path, LINE))
    observation = application.observation()

    # p·d + d(d+1)/2: 40 + 10 and 6 + 3.
    sample = observation.sample
    assert (59.0, 2, 6) == (sample.kv_token_time, sample.inferences, sample.output_tokens)
    assert ("report", features_of("Summarise this."), None) == (
        observation.application_class,
        sample.features,
        sample.input_text,
    )


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"class": "a b"}, "class must be 1 to 64 of"),
        ({"class": 3}, "class must be 1 to 64 of"),
        ({"input": " "}, "input must be a text that is not blank"),
        ({"inferences": []}, "inferences must be a list with at least one inference"),
        ({"inferences": [{"prompt_tokens": 1}]}, r"inferences\[0\] must be an object of"),
        (
            {"inferences": [{"prompt_tokens": 1, "output_tokens": 1.5}]},
            r"inferences\[0\]\.output_tokens must be an integer >= 1, got 1\.5",
        ),
        (
            {"inferences": [{"prompt_tokens": 0, "output_tokens": 1}]},
            r"inferences\[0\]\.prompt_tokens must be an integer >= 1, got 0",
        ),
        ({"cost": 3}, "field 'cost' must be one of class, inferences, input"),
    ],
)
def test_wrong_line_is_named(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    """A history of a million lines has to be repairable."""
    path = file_of(tmp_path, LINE, "", LINE | change)

    with pytest.raises(ConfigError, match=rf"history\.jsonl:3: {complaint}"):
        list(read_history(path))


def test_missing_field_is_named(tmp_path: Path) -> None:
    """So is a line that is no JSON, and a file that is not there."""
    line = {name: value for name, value in LINE.items() if name != "input"}

    with pytest.raises(ConfigError, match=r"history\.jsonl:1: field 'input' must be there"):
        list(read_history(file_of(tmp_path, line)))
    with pytest.raises(ConfigError, match=r"history\.jsonl:1: not JSON"):
        list(read_history(file_of(tmp_path, "{")))
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_history(tmp_path / "nothing.jsonl"))
