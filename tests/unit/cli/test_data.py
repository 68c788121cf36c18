"""`justitia data import`: all of a file or nothing, and input texts are not sent."""

import json
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.cli import data
from justitia_ray.cli.data import read_history
from justitia_ray.cli.main import main
from justitia_ray.errors import ConfigError
from justitia_ray.predictor.input_features import features_of
from justitia_ray.sim.suites.recorded_samples import load_samples, recorded_classes
from tests.unit.cli.noting_service import Answer, Sent, recording_service


def write_history(path: Path, count: int, **changes: Any) -> str:
    """Write a history of two classes, with the given fields in the last line."""
    lines: list[dict[str, Any]] = [
        {
            "class": f"class-{number % 2}",
            "input": f"secret number {number}",
            "inferences": [{"prompt_tokens": number + 1, "output_tokens": 2}],
        }
        for number in range(count)
    ]
    lines[-1] |= changes
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def import_data(*words: str) -> int:
    return main(["data", "import", *words])


def test_import_of_history_sends_features_and_no_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[Sent] = []
    file = write_history(tmp_path / "h.jsonl", 450)
    with recording_service((200, {}), sent) as url:
        assert 0 == import_data("--file", file, "--url", url)

    assert {("POST", "/v1/predictor/samples")} == {(method, path) for method, path, _ in sent}
    assert [200, 200, 50] == [len(body["samples"]) for *_, body in sent]
    assert "secret" not in json.dumps(sent)
    first = sent[0][2]["samples"][0]
    assert features_of("secret number 0").to_dict() == first["sample"]["features"]
    assert capsys.readouterr().out.startswith("450 applications of 2 classes are being learned")


def test_import_with_an_invalid_last_line_sends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a partial import the user would have to find out which lines were learned."""
    sent: list[Sent] = []
    file = write_history(tmp_path / "h.jsonl", 450, input=3)
    with recording_service((200, {}), sent) as url:
        assert 2 == import_data("--file", file, "--url", url)

    assert [] == sent
    assert f"{file}:450: input must be a text" in capsys.readouterr().err


def test_interrupted_import_of_history_reports_where_to_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[Sent] = []
    broken: Answer = (500, {"error": {"message": "broken"}})
    file = write_history(tmp_path / "h.jsonl", 450)
    with recording_service(lambda *_: broken if len(sent) == 2 else (200, {}), sent) as url:
        assert 1 == import_data("--file", file, "--url", url)
        assert "go on with --skip 200" in capsys.readouterr().err
        assert 0 == import_data("--file", file, "--url", url, "--skip", "200")

    assert [200, 200, 200, 50] == [len(body["samples"]) for *_, body in sent]
    assert sent[1] == sent[2]


def test_import_waits_for_a_busy_predictor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The predictor answers 503 while it processes earlier samples."""
    monkeypatch.setattr(data, "_PAUSE_S", 0.001)
    answers: list[Answer] = [(503, {"error": {"message": "still learning"}}), (200, {"taken": 1})]
    with recording_service(lambda *_: answers.pop(0)) as url:
        assert 0 == import_data("--file", write_history(tmp_path / "h.jsonl", 1), "--url", url)

    assert [] == answers


def test_directory_of_imported_history_has_the_format_of_recorded_data(tmp_path: Path) -> None:
    """`justitia predictor train --data` reads such a directory."""
    out = tmp_path / "data"
    assert 0 == import_data("--file", write_history(tmp_path / "h.jsonl", 5), "--out", str(out))

    assert ["class-0", "class-1"] == recorded_classes(out)
    samples = load_samples(out, "class-0")
    # p·d + d(d+1)/2 with d = 2
    assert [5, 9, 13] == [sample.kv_token_time for sample in samples]
    assert "secret number 4" == samples[2].input_text


def test_import_trains_only_the_named_model(tmp_path: Path) -> None:
    sent: list[Sent] = []
    file = write_history(tmp_path / "h.jsonl", 1)
    with recording_service((200, {}), sent) as url:
        assert 0 == import_data("--file", file, "--url", url, "--model", "org/m")

    assert ["/v1/predictor/samples?model=org%2Fm"] == [path for _, path, _ in sent]


LINE: dict[str, Any] = {
    "class": "report",
    "input": "Summarise this.",
    "inferences": [
        {"prompt_tokens": 10, "output_tokens": 4},
        {"prompt_tokens": 3, "output_tokens": 2},
    ],
}


def write_history_lines(tmp_path: Path, *lines: dict[str, Any]) -> Path:
    path = tmp_path / "history.jsonl"
    path.write_text("".join(f"\n{json.dumps(line)}" for line in lines))
    return path


def test_cost_of_an_application_is_computed_from_its_inferences(tmp_path: Path) -> None:
    (application,) = read_history(write_history_lines(tmp_path, LINE))
    observation = application.observation()

    # cost p·d + d(d+1)/2 of each inference: 40 + 10 and 6 + 3
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
        ({"input": None}, "field 'input' must be there"),
        ({"cost": 3}, "field 'cost' must be one of class, inferences, input"),
    ],
)
def test_invalid_line_of_a_history_is_named(
    tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    """A user must be able to find the line in a history of a million lines."""
    line = {name: value for name, value in (LINE | change).items() if value is not None}
    path = write_history_lines(tmp_path, LINE, line)

    with pytest.raises(ConfigError, match=rf"history\.jsonl:3: {complaint}"):
        list(read_history(path))
