"""`justitia data import`: all of a file or nothing, and texts stay where they are."""

import json
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.cli import data
from justitia_ray.cli.main import main
from justitia_ray.predictor.input_features import features_of
from justitia_ray.predictor.recordings import load_samples, recorded_classes
from tests.unit.cli.noting_service import Answer, noting_service


def history(path: Path, count: int, **changes: Any) -> str:
    """Write a history of two classes; the last line is changed."""
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


def imported(*words: str) -> int:
    """Run the command."""
    return main(["data", "import", *words])


def test_features_are_sent_and_texts_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In bounded batches, in the order of the file."""
    sent: list[dict[str, Any]] = []

    def answer(method: str, path: str, body: Any) -> Answer:
        assert ("POST", "/v1/predictor/samples") == (method, path)
        assert "secret" not in json.dumps(body)
        sent.append(body)
        return 200, {"taken": len(body["samples"])}

    file = history(tmp_path / "h.jsonl", 450)
    with noting_service(answer) as url:
        assert 0 == imported("--file", file, "--url", url)

    assert [200, 200, 50] == [len(body["samples"]) for body in sent]
    first = sent[0]["samples"][0]
    assert features_of("secret number 0").to_dict() == first["sample"]["features"]
    assert capsys.readouterr().out.startswith("450 applications of 2 classes are being learned")


def test_wrong_last_line_sends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody wants to find out which half was learned."""
    sent: list[Any] = []

    def answer(method: str, path: str, body: Any) -> Answer:
        sent.append(body)
        return 200, {}

    file = history(tmp_path / "h.jsonl", 450, input=3)
    with noting_service(answer) as url:
        assert 2 == imported("--file", file, "--url", url)

    assert [] == sent
    assert f"{file}:450: input must be a text" in capsys.readouterr().err


def test_service_that_breaks_off_says_where_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it has learned must not be sent again."""
    sent: list[Any] = []

    def answer(method: str, path: str, body: Any) -> Answer:
        sent.append(body)
        return (200, {"taken": 200}) if len(sent) != 2 else (500, {"error": {"message": "broken"}})

    file = history(tmp_path / "h.jsonl", 450)
    with noting_service(answer) as url:
        assert 1 == imported("--file", file, "--url", url)
        assert "go on with --skip 200" in capsys.readouterr().err
        assert 0 == imported("--file", file, "--url", url, "--skip", "200")

    assert [200, 200, 200, 50] == [len(body["samples"]) for body in sent]
    assert sent[1] == sent[2]


def test_busy_predictor_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so with 503 while it is still learning what it was sent."""
    monkeypatch.setattr(data, "_PAUSE_S", 0.001)
    answers: list[Answer] = [(503, {"error": {"message": "still learning"}}), (200, {"taken": 1})]
    with noting_service(lambda *_: answers.pop(0)) as url:
        assert 0 == imported("--file", history(tmp_path / "h.jsonl", 1), "--url", url)

    assert [] == answers


def test_directory_has_the_form_of_recorded_data(tmp_path: Path) -> None:
    """`justitia predictor train --data` reads it."""
    out = tmp_path / "data"
    assert 0 == imported("--file", history(tmp_path / "h.jsonl", 5), "--out", str(out))

    assert ["class-0", "class-1"] == recorded_classes(out)
    samples = load_samples(out, "class-0")
    # p·d + d(d+1)/2 with d = 2
    assert [5, 9, 13] == [sample.kv_token_time for sample in samples]
    assert "secret number 4" == samples[2].input_text


def test_directory_with_data_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two histories must not be mixed by mistake."""
    (tmp_path / "apps").mkdir()
    file = history(tmp_path / "h.jsonl", 2)

    assert 2 == imported("--file", file, "--out", str(tmp_path))
    assert "must be a new directory, has apps/ already" in capsys.readouterr().err


def test_class_of_the_data_sets_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its runs have stages, which this form does not tell."""
    file = history(tmp_path / "h.jsonl", 2, **{"class": "KBQAV"})

    assert 2 == imported("--file", file, "--out", str(tmp_path / "out"))
    assert "class KBQAV is one whose stages are known" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--url", "--skip", "2"), "--skip must be 0 to 1, got 2"),
        (("--out", "x", "--skip", "1"), "--skip goes with --url"),
    ],
)
def test_mistaken_options_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], complaint: str
) -> None:
    """No traceback for a user's mistake."""
    assert 2 == imported("--file", history(tmp_path / "h.jsonl", 2), *words)
    assert complaint in capsys.readouterr().err


def test_empty_file_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is another file than was meant."""
    (tmp_path / "empty").touch()

    assert 2 == imported("--file", str(tmp_path / "empty"), "--url")
    assert "holds no application" in capsys.readouterr().err


def test_one_of_several_models_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Histories of models are not mixed; a directory belongs to none yet."""
    paths = []

    def answer(method: str, path: str, body: Any) -> Answer:
        paths.append(path)
        return 200, {"taken": 1}

    file = history(tmp_path / "h.jsonl", 1)
    with noting_service(answer) as url:
        assert 0 == imported("--file", file, "--url", url, "--model", "org/m")
    assert 2 == imported("--file", file, "--out", str(tmp_path / "out"), "--model", "org/m")

    assert ["/v1/predictor/samples?model=org%2Fm"] == paths
    assert "--model goes with --url, not with --out" in capsys.readouterr().err
