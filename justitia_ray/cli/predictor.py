"""`justitia predictor`: models of application cost, trained and tested without a service."""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from justitia_ray.cli import predictor_versions
from justitia_ray.errors import ConfigError
from justitia_ray.predictor.evaluation import Evaluation, evaluate, metrics_of, split
from justitia_ray.predictor.model_directory import ModelDirectory
from justitia_ray.predictor.model_file import model_to_bytes
from justitia_ray.predictor.recordings import load_samples, recorded_classes
from justitia_ray.predictor.sample import Sample
from justitia_ray.predictor.training import FEWEST, KINDS, train
from justitia_ray.replacing import replacing_text
from justitia_ray.text_table import text_table
from justitia_ray.workloads.data_directory import data_directory

METRICS = "metrics.json"
_MEAN = "mean"


def add_to(commands: Any) -> None:
    """Add the subcommand to argparse's subparsers."""
    parser = commands.add_parser(
        "predictor",
        help="train, test and look after the models of application cost",
        description="Train, test and look after the models of application cost.",
    )
    subcommands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    training = subcommands.add_parser(
        "train",
        help="train a model of each class from recorded runs",
        description=(
            "Train a model of each class from the recorded runs of a data directory whose inputs"
            " are known, and write it below --out, where `--models` looks for it. The metrics are"
            " those of models trained on four of five runs and tested on the fifth; the models"
            " that are written are trained on all runs."
        ),
    )
    _add_common(training, "the models")
    training.set_defaults(run=run_train)
    testing = subcommands.add_parser(
        "evaluate",
        help="test models on recorded runs that they have not seen",
        description=(
            "Train a model of each class on recorded runs and test it on others: on those of"
            " --holdout, or on a fifth of the runs, drawn by the seed. Nothing but the metrics is"
            " written."
        ),
    )
    testing.add_argument(
        "--holdout",
        type=Path,
        metavar="DIR",
        help="test on all runs of its `recorded/`; their inputs are in --data",
    )
    _add_common(testing, METRICS)
    testing.set_defaults(run=run_evaluate)
    predictor_versions.add_to(subcommands)


def run_train(options: argparse.Namespace) -> int:
    """Train, write the models and the metrics, print a table and return 0.

    Raises:
        ConfigError: If an option or a file is wrong, or what training needs is not installed.
    """
    data_dir = data_directory(options.data, required=True)
    samples = _samples(data_dir, options.classes)
    models = ModelDirectory(options.out)
    evaluations = {}
    for name, known in samples.items():
        tested = evaluations[name] = _tested_on_a_part(name, known, options)
        model = train(known, kind=options.kind, seed=options.seed)
        record = {
            "kind": model.kind,
            "samples": model.samples,
            "error": tested.mean_relative_error,
            "reason": "command",
            "trained_at": time.time(),
            "seed": options.seed,
        }
        models.publish(name, model_to_bytes(model), record)
    _report(options.out, evaluations)
    return 0


def run_evaluate(options: argparse.Namespace) -> int:
    """Test, write the metrics, print a table and return 0.

    Raises:
        ConfigError: If an option or a file is wrong, or what training needs is not installed.
    """
    data_dir = data_directory(options.data, required=True)
    if options.holdout is None:
        samples = _samples(data_dir, options.classes)
        evaluations = {
            name: _tested_on_a_part(name, known, options) for name, known in samples.items()
        }
    else:
        tests = _samples(data_dir, options.classes, options.holdout)
        evaluations = {
            name: _tested_on(name, load_samples(data_dir, name), test, options)
            for name, test in tests.items()
        }
    _report(options.out, evaluations)
    return 0


def table(evaluations: Mapping[str, Evaluation]) -> str:
    """Return the metrics for a terminal."""
    rows = [
        ["class", "kind", "train", "test", "error", "median", "baseline", "p10-p90", "ms", "s"],
        *(
            [name, e.model.kind, f"{e.n_train}", f"{e.n_test}", *_figures(e.metrics(), e.covered)]
            for name, e in evaluations.items()
        ),
    ]
    covered = sum(e.covered for e in evaluations.values()) / len(evaluations)
    rows.append([_MEAN, "", "", "", *_figures(metrics_of(evaluations)[_MEAN], covered)])
    return text_table(rows, numbers_from=2)


def _add_common(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="recorded runs and inputs (or JUSTITIA_DATA)"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help=f"where {what} and {METRICS} go"
    )
    parser.add_argument(
        "--classes",
        nargs="+",
        metavar="CLASS",
        help="which; all that have runs whose inputs are known",
    )
    parser.add_argument("--kind", default="auto", choices=KINDS, help="of model; auto")
    parser.add_argument("--seed", type=int, default=0, help="of all random choices; 0")


def _samples(
    data_dir: Path, wanted: Sequence[str] | None, runs_dir: Path | None = None
) -> dict[str, list[Sample]]:
    """Return samples by class: of those wanted, or of all that have any."""
    there = recorded_classes(runs_dir or data_dir)
    if unknown := [name for name in wanted or () if name not in there]:
        raise ConfigError(f"--classes must be among {', '.join(there)}, got {unknown[0]!r}")
    names = [name for name in there if not wanted or name in wanted]
    samples = {name: load_samples(data_dir, name, runs_dir) for name in names}
    if without := [name for name in wanted or () if not samples[name]]:
        raise ConfigError(f"--classes: no run of {without[0]!r} has an input that is known")
    known = {name: found for name, found in samples.items() if found}
    if not known:
        raise ConfigError(f"{runs_dir or data_dir}: no recorded run has an input that is known")
    return known


def _tested_on_a_part(
    name: str, samples: Sequence[Sample], options: argparse.Namespace
) -> Evaluation:
    try:
        training, test = split(samples, options.seed)
    except ValueError as error:
        raise ConfigError(f"class {name}: {error}") from error
    return evaluate(training, test, kind=options.kind, seed=options.seed)


def _tested_on(
    name: str, training: Sequence[Sample], test: Sequence[Sample], options: argparse.Namespace
) -> Evaluation:
    if len(training) < FEWEST:
        raise ConfigError(
            f"class {name}: --data must have at least {FEWEST} runs to train on, has"
            f" {len(training)}"
        )
    return evaluate(training, test, kind=options.kind, seed=options.seed)


def _report(out: Path, evaluations: Mapping[str, Evaluation]) -> None:
    path = out / METRICS
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be made: {error.strerror}") from error
    with replacing_text(path) as file:
        file.write(json.dumps(metrics_of(evaluations), indent=2) + "\n")
    print(table(evaluations))
    print(f"\n{path}")


def _figures(metrics: Mapping[str, float], covered: float) -> list[str]:
    shares = ("mean_relative_error", "median_relative_error", "baseline_median_error")
    return [
        *(f"{metrics[name]:.1%}" for name in shares),
        f"{covered:.0%}",
        f"{metrics['predict_ms_p50']:.2f}",
        f"{metrics['train_s']:.1f}",
    ]
