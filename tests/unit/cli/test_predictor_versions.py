"""`justitia predictor list` and `rollback`, on a directory and on a service."""

import json
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.cli.main import main
from justitia_ray.predictor.model_directory import ModelDirectory
from tests.unit.cli.noting_service import Answer, noting_service

RECORD = {
    "kind": "mlp",
    "samples": 80,
    "error": 0.25,
    "rival_error": 0.5,
    "reason": "samples",
    "trained_at": 86_400.0,
}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A directory with two versions of one class."""
    directory = ModelDirectory(tmp_path / "models")
    directory.publish("report", b"1", {})
    directory.publish("report", b"2", RECORD)
    return directory.path


def test_list_shows_what_serves_and_how_it_came(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The operator sees at a glance whether the latest training was worth it."""
    assert 0 == main(["predictor", "list", "--models", str(models)])

    head, latest, first = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["class", "samples", "version"]
    shown = ["report", "–", "2", "serves", "mlp", "80", "25.0%", "50.0%", "samples"]
    assert [*shown, "1970-01-02", "00:00"] == latest.split()
    assert ["1", "–", "–", "–", "–", "–", "–"] == first.split()


def test_list_as_json(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For scripts."""
    assert 0 == main(["predictor", "list", "--models", str(models), "--json"])

    known = json.loads(capsys.readouterr().out)["classes"]["report"]
    assert (2, False) == (known["active"], known["pinned"])
    assert {"version": 2, "size_bytes": 1} | RECORD == known["versions"][1]


def test_rollback_and_release_in_a_directory(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By one command each, and it says what serves now."""
    for words in ((), ("--to", "0"), ("--to", "2"), ("--release",)):
        assert 0 == main(["predictor", "rollback", "report", *words, "--models", str(models)])

    assert [
        "class report: version 1 serves until it is released",
        "class report: no model, its mean, serves until it is released",
        "class report: version 2 serves until it is released",
        "class report: version 2 serves until a training beats it",
    ] == capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("other",), "has no models of class 'other', but of report"),
        (("report", "--to", "9"), "class report: version is 9: one of 0, 1, 2 is allowed"),
        (("report", "--to", "-1"), "--to must be an integer >= 0, got -1"),
        (("report", "--to", "1", "--release"), "--to and --release cannot be given together"),
    ],
)
def test_mistakes_are_one_sentence(
    models: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], complaint: str
) -> None:
    """It says what there is to choose from."""
    assert 2 == main(["predictor", "rollback", *words, "--models", str(models)])
    assert complaint in capsys.readouterr().err


def test_missing_directory_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty list would pass for no models."""
    assert 2 == main(["predictor", "list", "--models", str(tmp_path / "none")])
    assert "none: no such directory of models" in capsys.readouterr().err


def test_service_is_asked_over_http(capsys: pytest.CaptureFixture[str]) -> None:
    """The same commands, where models live in Redis."""
    known = {
        "samples": 31,
        "serving": 1,
        "active": 2,
        "pinned": False,
        "versions": [{"version": 1}, {"version": 2} | RECORD],
    }
    mean_only = {"samples": 4, "serving": 0, "active": 0, "pinned": False, "versions": []}
    gone_back = known | {"active": 0, "serving": 0, "pinned": True}
    asked: list[tuple[str, str, Any]] = []

    def answer(method: str, path: str, body: Any) -> Answer:
        asked.append((method, path, body))
        classes = {"report": known, "new": mean_only, "old": gone_back}
        return 200, ({"classes": classes} if method == "GET" else gone_back)

    with noting_service(answer) as url:
        assert 0 == main(["predictor", "list", "--url", url])
        assert 0 == main(["predictor", "rollback", "report", "--to", "0", "--url", url])

    assert [
        ("GET", "/v1/predictor", None),
        ("POST", "/v1/predictor/report/rollback", {"version": 0, "release": False}),
    ] == asked
    lines = capsys.readouterr().out.splitlines()
    assert "damaged: 1 serves" in lines[1]
    assert "class mean" in lines[3]
    assert ["0", "serves,", "pinned"] == lines[6].split()


def test_service_that_refuses_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1: the service did not do it."""
    refusal = {"error": {"message": "class 'x' has no model", "code": None}}
    with noting_service(lambda *_: (400, refusal)) as url:
        assert 1 == main(["predictor", "rollback", "x", "--url", url])

    assert "class 'x' has no model" in capsys.readouterr().err


def test_one_of_several_models_has_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Each has classes of its own; the message says which models there are."""
    paths = []

    def answer(method: str, path: str, body: Any) -> Answer:
        paths.append(path)
        return 200, {"classes": {}} if "?" in path else {"models": {"m": {}, "n": {}}}

    with noting_service(answer) as url:
        assert 2 == main(["predictor", "list", "--url", url])
        assert 0 == main(["predictor", "list", "--url", url, "--model", "n"])
        assert 2 == main(["predictor", "list", "--models", ".", "--model", "n"])

    assert ["/v1/predictor", "/v1/predictor?model=n"] == paths
    said = capsys.readouterr().err
    assert "--model is required: one of m, n is allowed" in said
    assert "--model goes with --url, not with --models" in said
