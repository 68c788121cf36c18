"""`justitia predictor`: train and test models of application cost, list and roll back versions."""

import argparse
import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import quote

from justitia_ray.atomic_files import replacing_text
from justitia_ray.cli.running_service import DEFAULT_URL
from justitia_ray.cli.text_table import format_cell, text_table
from justitia_ray.client.calls import JsonCalls, path_for_model
from justitia_ray.client.transport import HttpTransport
from justitia_ray.errors import ConfigError, RequestError
from justitia_ray.predictor.evaluation import (
    Evaluation,
    binomial_reach,
    evaluate,
    metrics_of,
    pinball_ratio,
    split,
)
from justitia_ray.predictor.model_directory import ModelDirectory
from justitia_ray.predictor.model_file import model_to_bytes
from justitia_ray.predictor.observation import LEAST_TRAINED_ON, Sample
from justitia_ray.predictor.training import KINDS, check_kind, check_seed, train
from justitia_ray.predictor.versions import VersionIndex
from justitia_ray.sim.suites.inputs import data_directory
from justitia_ray.sim.suites.recorded_samples import load_samples, recorded_classes

METRICS = "metrics.json"
_TIMEOUT_S = 30.0
_MEAN = "mean"
_ERRORS = ("error", "median", "baseline")


def add_subcommand(commands: Any) -> None:
    parser = commands.add_parser(
        "predictor",
        help="train, test, list and roll back the models of application cost",
        description="Train, test, list and roll back the models of application cost.",
    )
    subcommands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    training = subcommands.add_parser(
        "train",
        help="train a model of each class from recorded runs",
        description=(
            "Train a model of each class from the recorded runs of a data directory whose inputs"
            " are known, and write it below --out, from where `--models` reads it. The metrics are"
            " those of models trained on four of five runs and tested on the fifth; the written"
            " models are trained on all runs."
        ),
    )
    _add_common_options(training, "the models")
    training.set_defaults(run=run_train)
    testing = subcommands.add_parser(
        "evaluate",
        help="test models on recorded runs that they have not seen",
        description=(
            "Train a model of each class on recorded runs and test it on others: on those of"
            " --holdout, or on a fifth of the runs, drawn by the seed. Only the metrics are"
            " written."
        ),
    )
    testing.add_argument(
        "--holdout",
        type=Path,
        metavar="DIR",
        help="test on all runs of DIR/recorded; their inputs are in --data",
    )
    _add_common_options(testing, METRICS)
    testing.set_defaults(run=run_evaluate)
    _add_versions(subcommands)


def _add_versions(subcommands: Any) -> None:
    listing = subcommands.add_parser(
        "list",
        help="show the classes and the versions of their models",
        description=(
            "Show each class, the version of its model in service, and each version's training."
            " `error` is the mean relative error on the latest samples, on which the model was not"
            " trained; `before` that of the version in service until then."
        ),
    )
    _add_target_options(listing)
    listing.add_argument("--json", action="store_true", help="print the answer as JSON")
    listing.set_defaults(run=run_list)
    rollback = subcommands.add_parser(
        "rollback",
        help="return to an earlier version of a class's model",
        description=(
            "Return to an earlier version of a class's model: the one before the active one, or"
            " --to. No training replaces it before --release; after --release it serves until a"
            " training gives a better one."
        ),
    )
    rollback.add_argument("application_class", metavar="CLASS")
    rollback.add_argument(
        "--to", type=int, metavar="VERSION", help="version to return to; 0 is the mean of the class"
    )
    rollback.add_argument(
        "--release", action="store_true", help="allow trainings to replace the version"
    )
    _add_target_options(rollback)
    rollback.set_defaults(run=run_rollback)


def run_train(options: argparse.Namespace) -> int:
    """Train cost models offline, write them with their metrics, and print a table.

    Raises:
        ConfigError: If an option or a file is wrong, or the packages for training are not
            installed.
    """
    check_kind(options.kind)
    check_seed(options.seed)
    data_dir = data_directory(options.data, required=True)
    samples = _samples_by_class(data_dir, options.classes)
    models = ModelDirectory(options.out)
    evaluations = {}
    for name, known in samples.items():
        tested = evaluations[name] = _evaluate_split(name, known, options)
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
    _write_metrics(options.out, evaluations)
    return 0


def run_evaluate(options: argparse.Namespace) -> int:
    """Evaluate cost models on held-out samples, write the metrics and print a table.

    Raises:
        ConfigError: If an option or a file is wrong, or the packages for training are not
            installed.
    """
    check_kind(options.kind)
    check_seed(options.seed)
    data_dir = data_directory(options.data, required=True)
    evaluations = {}
    for name, known in _samples_by_class(data_dir, options.classes, options.holdout).items():
        if options.holdout is None:
            evaluations[name] = _evaluate_split(name, known, options)
            continue
        training = load_samples(data_dir, name)
        if len(training) < LEAST_TRAINED_ON:
            raise ConfigError(
                f"class {name}: --data must have at least {LEAST_TRAINED_ON} runs to train on, has"
                f" {len(training)}"
            )
        evaluations[name] = evaluate(training, known, kind=options.kind, seed=options.seed)
    _write_metrics(options.out, evaluations)
    return 0


def evaluation_table(evaluations: Mapping[str, Evaluation]) -> str:
    """Return the metrics of an evaluation as a table for a terminal.

    `p10-p90` is the share of test costs between p10 and p90, with the expected random deviation
    from 80 %. `pinball` is the loss of the model's p10, cost and p90 over the loss of the class's
    own quantiles: below 1, the model is useful.
    """
    rows = [
        ["class", "kind", "train", "test", *_ERRORS, "p10-p90", "pinball", "ms", "s"],
        *(
            [
                name,
                e.model.kind,
                f"{e.n_train}",
                f"{e.n_test}",
                *_metric_cells(
                    e.metrics(),
                    f"{e.covered:.0%} ±{binomial_reach(e.n_test):.0%}",
                    pinball_ratio(e.pinball_loss, e.baseline_pinball_loss),
                ),
            ]
            for name, e in evaluations.items()
        ),
    ]
    covered = fmean(e.covered for e in evaluations.values())
    pinball = fmean(
        pinball_ratio(e.pinball_loss, e.baseline_pinball_loss) for e in evaluations.values()
    )
    of_mean = _metric_cells(metrics_of(evaluations)[_MEAN], f"{covered:.0%}", pinball)
    rows.append([_MEAN, "", "", "", *of_mean])
    return text_table(rows, numbers_from=2)


def _add_common_options(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="recorded runs and inputs (or JUSTITIA_DATA)"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help=f"directory for {what} and {METRICS}"
    )
    parser.add_argument(
        "--classes",
        nargs="+",
        metavar="CLASS",
        help="classes (default: all that have runs with known inputs)",
    )
    parser.add_argument(
        "--kind", default="mlp", help=f"kind of model: {' or '.join(KINDS)} (default mlp)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of all random choices (default 0)"
    )


def _samples_by_class(
    data_dir: Path, wanted: Sequence[str] | None, runs_dir: Path | None = None
) -> dict[str, list[Sample]]:
    """Return the training samples of the requested classes, or of all classes that have any."""
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


def _evaluate_split(
    name: str, samples: Sequence[Sample], options: argparse.Namespace
) -> Evaluation:
    try:
        training, test = split(samples, options.seed)
    except ValueError as error:
        raise ConfigError(f"class {name}: {error}") from error
    return evaluate(training, test, kind=options.kind, seed=options.seed)


def _write_metrics(out: Path, evaluations: Mapping[str, Evaluation]) -> None:
    path = out / METRICS
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be made: {error.strerror}") from error
    with replacing_text(path) as file:
        file.write(json.dumps(metrics_of(evaluations), indent=2) + "\n")
    print(evaluation_table(evaluations))
    print(f"\n{path}")


def _metric_cells(metrics: Mapping[str, float], covered: str, pinball: float) -> list[str]:
    shares = ("mean_relative_error", "median_relative_error", "baseline_median_error")
    return [
        *(f"{metrics[name]:.1%}" for name in shares),
        covered,
        f"{pinball:.2f}",
        f"{metrics['predict_ms_p50']:.2f}",
        f"{metrics['train_s']:.1f}",
    ]


def run_list(options: argparse.Namespace) -> int:
    """Print the model versions of each application class.

    Raises:
        ConfigError: If the directory does not exist.
        StoreError: If an index in the directory is damaged.
        ResponseError, ConnectionError: If the service did not answer.
    """
    _check_target(options)
    if options.models is None:
        answer = _call_service(options.url, "GET", path_for_model("/v1/predictor", options.model))
        if "classes" not in answer:
            there = ", ".join(answer.get("models", {}))
            raise ConfigError(f"--model is required: one of {there} is allowed")
        classes = answer["classes"]
    else:
        directory = ModelDirectory(options.models)
        classes = {name: directory.index(name).describe() for name in directory.classes()}
    print(json.dumps({"classes": classes}, indent=2) if options.json else version_table(classes))
    return 0


def run_rollback(options: argparse.Namespace) -> int:
    """Roll back the model of a class, and print the version that serves now.

    Raises:
        ConfigError: If the options contradict each other, or the class or version does not exist.
        ResponseError, ConnectionError: If the service refused or did not answer.
    """
    name = options.application_class
    _check_target(options)
    if options.release and options.to is not None:
        raise ConfigError("--to and --release cannot be given together")
    if options.to is not None and options.to < 0:
        raise ConfigError(f"--to must be an integer >= 0, got {options.to}")
    if options.models is None:
        body = {"version": options.to, "release": options.release}
        path = path_for_model(f"/v1/predictor/{quote(name, safe='')}/rollback", options.model)
        of_class = _call_service(options.url, "POST", path, body)
    else:
        of_class = _roll_back(ModelDirectory(options.models), options).describe()
    held = "until it is released" if of_class["pinned"] else "until a training beats it"
    version = of_class["active"]
    serves = f"version {version}" if version else "no model, its mean,"
    print(f"class {name}: {serves} serves {held}")
    return 0


def version_table(classes: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table of model versions; a class without a model has one line."""
    head = ["class", "samples", "version", "", "kind", "trained on", "error", "before", "why"]
    rows = [[*head, "when (UTC)"]]
    for name, known in classes.items():
        about = [name, format_cell(known.get("samples"))]
        if not known["versions"]:
            rows.append([*about, "–", "class mean", *[""] * 6])
        for version in reversed(known["versions"]):
            state = ""
            if version["version"] == known["active"]:
                state = "serves, pinned" if known["pinned"] else "serves"
                if known.get("serving", known["active"]) != known["active"]:
                    state = f"damaged: {known['serving'] or 'class mean'} serves"
            rows.append([*about, str(version["version"]), state, *_training_summary(version)])
            about = ["", ""]
        if known["versions"] and not known["active"]:
            rows.append(["", "", "0", "serves, pinned" if known["pinned"] else "serves", *[""] * 6])
    return text_table(rows)


def _add_target_options(parser: argparse.ArgumentParser) -> None:
    target = parser.add_mutually_exclusive_group()
    target.add_argument(
        "--models", type=Path, metavar="DIR", help="output of `justitia predictor train`"
    )
    target.add_argument(
        "--url", default=DEFAULT_URL, help=f"URL of a running service (default {DEFAULT_URL})"
    )
    parser.add_argument("--model", help="with --url: the model, if several are served")


def _check_target(options: argparse.Namespace) -> None:
    if options.models is not None and options.model is not None:
        raise ConfigError("--model goes with --url, not with --models")


def _roll_back(directory: ModelDirectory, options: argparse.Namespace) -> VersionIndex:
    name = options.application_class
    if name not in directory.classes():
        raise ConfigError(
            f"{directory.path}: has no models of class {name!r}, but of"
            f" {', '.join(directory.classes()) or 'none'}"
        )
    try:
        index = directory.index(name).after_rollback(options.to, release=options.release)
    except RequestError as error:
        raise ConfigError(f"class {name}: {error}") from error
    directory.save_index(name, index)
    return index


def _call_service(url: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    async def call() -> dict[str, Any]:
        http = HttpTransport(url, connect_timeout_s=_TIMEOUT_S, read_timeout_s=_TIMEOUT_S)
        async with aclosing(http):
            return await JsonCalls(http, max_retries=0).call(method, path, body)

    return asyncio.run(call())


def _training_summary(record: Mapping[str, Any]) -> Sequence[str]:
    at = record.get("trained_at")
    when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(at)) if isinstance(at, int | float) else "–"
    return [
        format_cell(record.get("kind")),
        format_cell(record.get("samples")),
        _format_percentage(record.get("error")),
        _format_percentage(record.get("rival_error")),
        format_cell(record.get("reason")),
        when,
    ]


def _format_percentage(value: object) -> str:
    return f"{value:.1%}" if isinstance(value, int | float) else "–"
