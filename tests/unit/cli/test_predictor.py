"""`justitia predictor train` and `evaluate`: metrics and models, or one sentence."""

import json
import random
from pathlib import Path

import pytest

from justitia_ray.cli.main import main
from justitia_ray.predictor.model_directory import ModelDirectory
from justitia_ray.predictor.model_file import model_from_bytes
from tests.unit.sim.suites.data_directory import write_lines

FIELDS = {
    "n_train",
    "n_test",
    "mean_relative_error",
    "median_relative_error",
    "baseline_median_error",
    "predict_ms_p50",
    "train_s",
}
"""DESIGN.md, Sec. 5, written out again: it is a contract."""


def write_runs(where: Path, name: str, numbers: range, *, inputs: Path | None = None) -> None:
    """Write runs whose output grows with their input."""
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


def predictor(*words: str | Path) -> int:
    return main(["predictor", *map(str, words)])


def test_evaluate_writes_metrics_of_held_out_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of --data is trained on, all of --holdout tested on, and only classes that it has."""
    data, held, out = tmp_path / "data", tmp_path / "held", tmp_path / "out"
    write_runs(data, "A", range(40))
    write_runs(data, "B", range(40))
    write_runs(held, "A", range(40, 50), inputs=data)

    code = predictor("evaluate", "--data", data, "--holdout", held, "--out", out, "--kind", "ridge")
    metrics = json.loads((out / "metrics.json").read_text())

    assert 0 == code
    assert {"A", "mean"} == metrics.keys()
    assert metrics["A"].keys() == metrics["mean"].keys() == FIELDS
    assert (40, 10) == (metrics["A"]["n_train"], metrics["A"]["n_test"])
    assert metrics["A"]["mean_relative_error"] < metrics["A"]["baseline_median_error"]
    assert ["metrics.json"] == [path.name for path in out.iterdir()]
    assert "baseline" in capsys.readouterr().out


def test_train_writes_models_of_all_runs_and_metrics_of_a_part(tmp_path: Path) -> None:
    """What serves is trained on everything; what is told of it was measured on runs not seen."""
    write_runs(tmp_path, "A", range(40))
    write_runs(tmp_path, "B", range(30))
    out = tmp_path / "models"

    assert 0 == predictor(
        "train", "--data", tmp_path, "--out", out, "--classes", "B", "--kind", "ridge"
    )
    active = ModelDirectory(out).active("B")
    metrics = json.loads((out / "metrics.json").read_text())

    assert active is not None
    assert (1, 30) == (active[0], model_from_bytes(active[1], "here").samples)
    assert {"B", "mean"} == metrics.keys()
    assert (24, 6) == (metrics["B"]["n_train"], metrics["B"]["n_test"])
    assert ["B"] == ModelDirectory(out).classes()


def test_same_command_writes_the_same_model(tmp_path: Path) -> None:
    """The seed is all the luck there is."""
    write_runs(tmp_path, "A", range(30))
    for _ in range(2):
        predictor("train", "--data", tmp_path, "--out", tmp_path / "m", "--kind", "forest")
    first, second = ModelDirectory(tmp_path / "m").versions("A")

    assert first.sha256 == second.sha256


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--classes", "C"), "--classes must be among A, got 'C'"),
        (("--holdout", "nowhere"), "nowhere/recorded: cannot be read"),
    ],
)
def test_mistake_is_one_sentence_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], complaint: str
) -> None:
    """No traceback, and no metrics of another run beside it."""
    write_runs(tmp_path, "A", range(30))

    assert 2 == predictor("evaluate", "--data", tmp_path, "--out", tmp_path / "out", *words)
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_class_of_too_few_runs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Five to train on is the least, and one to test on."""
    write_runs(tmp_path, "A", range(4))

    assert 2 == predictor("evaluate", "--data", tmp_path, "--out", tmp_path / "out")
    assert "class A: 4 samples are too few" in capsys.readouterr().err
