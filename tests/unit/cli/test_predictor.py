"""`justitia predictor train` and `evaluate`: metrics and models, or one error sentence."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.cli.main import main
from justitia_ray.predictor.model_directory import ModelDirectory
from justitia_ray.predictor.model_file import model_from_bytes
from tests.unit.cli.noting_service import Sent, recording_service
from tests.unit.predictor.builders import quick_networks
from tests.unit.sim.data_directory import write_lines

__all__ = ["quick_networks"]

FIELDS = {
    "n_train",
    "n_test",
    "mean_relative_error",
    "median_relative_error",
    "baseline_median_error",
    "predict_ms_p50",
    "train_s",
}
"""Fields of the metrics file, repeated here because users rely on them."""


def write_runs(where: Path, name: str, numbers: range, *, inputs: Path | None = None) -> None:
    """Write recorded runs whose output grows with their input."""
    rng = random.Random(name)
    lengths = [rng.randint(1, 40) for _ in range(100)]
    write_lines(
        (inputs or where) / "apps" / f"{name}.jsonl",
        *({"id": f"{name}-{i}", "input": "word " * n} for i, n in enumerate(lengths)),
    )
    write_lines(
        where / "recorded" / f"{name}.jsonl",
        *(
            {"item_id": f"{name}-{i}", "stages": [{"name": "s", "calls": [[10, 5 * lengths[i]]]}]}
            for i in numbers
        ),
    )


def run_predictor(*words: str | Path) -> int:
    return main(["predictor", *map(str, words)])


@pytest.mark.usefixtures("quick_networks")
def test_evaluate_command_writes_metrics_of_held_out_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model is tested on the runs of --holdout of which it knows the class."""
    data, held, out = tmp_path / "data", tmp_path / "held", tmp_path / "out"
    write_runs(data, "A", range(40))
    write_runs(data, "B", range(40))
    write_runs(held, "A", range(40, 50), inputs=data)

    code = run_predictor("evaluate", "--data", data, "--holdout", held, "--out", out)
    metrics = json.loads((out / "metrics.json").read_text())

    assert 0 == code
    assert {"A", "mean"} == metrics.keys()
    assert metrics["A"].keys() == metrics["mean"].keys() == FIELDS
    assert (40, 10) == (metrics["A"]["n_train"], metrics["A"]["n_test"])
    assert metrics["A"]["mean_relative_error"] < metrics["A"]["baseline_median_error"]
    assert ["metrics.json"] == [path.name for path in out.iterdir()]
    assert "baseline" in capsys.readouterr().out


@pytest.mark.usefixtures("quick_networks")
def test_train_command_writes_models_and_metrics(tmp_path: Path) -> None:
    """The served model is trained on all runs, and its metrics come from held-out ones."""
    write_runs(tmp_path, "A", range(40))
    write_runs(tmp_path, "B", range(30))
    out = tmp_path / "models"

    assert 0 == run_predictor("train", "--data", tmp_path, "--out", out, "--classes", "B")
    active = ModelDirectory(out).active("B")
    metrics = json.loads((out / "metrics.json").read_text())

    assert active is not None
    assert (1, 30) == (active[0], model_from_bytes(active[1], "here").samples)
    assert {"B", "mean"} == metrics.keys()
    assert (24, 6) == (metrics["B"]["n_train"], metrics["B"]["n_test"])
    assert ["B"] == ModelDirectory(out).classes()


@pytest.mark.parametrize("action", ["train", "evaluate"])
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("auto", "kind auto was removed: write mlp, the default"),
        ("svm", "kind must be one of mlp, paper, got 'svm'"),
    ],
)
def test_model_kind_is_checked_before_data_are_read(
    action: str, kind: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == run_predictor(action, "--data", "none", "--out", "none", "--kind", kind)
    assert told in capsys.readouterr().err


RECORD = {
    "kind": "mlp",
    "samples": 80,
    "error": 0.25,
    "rival_error": 0.5,
    "reason": "samples",
    "trained_at": 86_400.0,
}


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """Return a directory with two versions of one class's model."""
    directory = ModelDirectory(tmp_path / "models")
    directory.publish("report", b"1", {})
    directory.publish("report", b"2", RECORD)
    return directory.path


def test_list_command_shows_the_serving_model_and_its_training(
    model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == run_predictor("list", "--models", model_dir)
    head, latest, first = capsys.readouterr().out.splitlines()
    assert 0 == run_predictor("list", "--models", model_dir, "--json")
    known = json.loads(capsys.readouterr().out)["classes"]["report"]

    assert head.split()[:3] == ["class", "samples", "version"]
    shown = ["report", "–", "2", "serves", "mlp", "80", "25.0%", "50.0%", "samples"]
    assert [*shown, "1970-01-02", "00:00"] == latest.split()
    assert ["1", "–", "–", "–", "–", "–", "–"] == first.split()
    assert (2, False) == (known["active"], known["pinned"])
    assert {"version": 2, "size_bytes": 1} | RECORD == known["versions"][1]


def test_rollback_command_pins_a_model_version_until_release(
    model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command prints the model version that serves afterwards."""
    for words in ((), ("--to", "0"), ("--to", "2"), ("--release",)):
        assert 0 == main(["predictor", "rollback", "report", *words, "--models", str(model_dir)])

    assert [
        "class report: version 1 serves until it is released",
        "class report: no model, its mean, serves until it is released",
        "class report: version 2 serves until it is released",
        "class report: version 2 serves until a training beats it",
    ] == capsys.readouterr().out.splitlines()


def test_models_in_redis_are_listed_and_rolled_back_over_http(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = {
        "samples": 31,
        "serving": 1,
        "active": 2,
        "pinned": False,
        "versions": [{"version": 1}, {"version": 2} | RECORD],
    }
    mean_only = {"samples": 4, "serving": 0, "active": 0, "pinned": False, "versions": []}
    gone_back = known | {"active": 0, "serving": 0, "pinned": True}
    asked: list[Sent] = []
    answers: dict[str, Any] = {
        "GET": {"classes": {"report": known, "new": mean_only, "old": gone_back}},
        "POST": gone_back,
    }
    with recording_service(lambda method, *_: (200, answers[method]), asked) as url:
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


def test_predictor_command_quotes_the_refusal_of_the_service(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit status 1 means that the service did not execute the command."""
    refusal = {"error": {"message": "class 'x' has no model", "code": None}}
    with recording_service((400, refusal)) as url:
        assert 1 == main(["predictor", "rollback", "x", "--url", url])

    assert "class 'x' has no model" in capsys.readouterr().err


def test_predictor_command_needs_a_model_name_if_there_are_several(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without `--model` the error lists the served models."""
    asked: list[Sent] = []
    with recording_service((200, {"models": {"m": {}, "n": {}}}), asked) as url:
        assert 2 == main(["predictor", "list", "--url", url])
    with recording_service((200, {"classes": {}}), asked) as url:
        assert 0 == main(["predictor", "list", "--url", url, "--model", "n"])

    assert ["/v1/predictor", "/v1/predictor?model=n"] == [path for _, path, _ in asked]
    assert "--model is required: one of m, n is allowed" in capsys.readouterr().err
