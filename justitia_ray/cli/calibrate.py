"""`justitia calibrate`: fit an engine profile to measured requests, or validate one."""

import argparse
import asyncio
import json
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from justitia_ray import __version__
from justitia_ray.atomic_files import replacing_text
from justitia_ray.errors import ConfigError
from justitia_ray.sim.calibration.fit import (
    ComparedFigure,
    FittedProfile,
    RunValidation,
    calibrate,
    validate,
)
from justitia_ray.sim.calibration.live import measure_live
from justitia_ray.sim.calibration.measured import MeasuredRun, read_run, write_run
from justitia_ray.sim.engine_profile import (
    EngineProfile,
    Fitted,
    FittedRun,
    ProfileFile,
    load_profile,
    load_profile_file,
    write_profile,
)
from justitia_ray.units import Tokens

SHOWN = (
    "tokens_per_s",
    "mean_first_token_latency_s",
    "p90_first_token_latency_s",
    "max_service_difference",
    "mean_service_difference",
)


def add_subcommand(commands: Any) -> None:
    parser = commands.add_parser(
        "calibrate",
        help="fit an engine profile to measured requests, or check one",
        description=(
            "Fit the cost of an engine's iterations to measured requests, and write a profile for"
            " `justitia simulate --engine-profile`; or simulate measured runs with a profile and"
            " print its errors. The rules of the engine (prefill, admission, overflow) are not"
            " fitted: --start names a profile that has them."
        ),
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--runs",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="CSV of measured requests, or a .gz of one: client, arrival_s, prompt_tokens, "
        "output_tokens, first_token_latency_s, latency_s; a name POLICY__NAME.csv gives the policy",
    )
    source.add_argument(
        "--url",
        help="URL of a live service with one idle replica, to which timed requests are sent",
    )
    source.add_argument(
        "--check", type=Path, nargs="+", metavar="FILE", help="runs to predict with --profile"
    )
    parser.add_argument(
        "--kv-tokens",
        type=int,
        metavar="M",
        help="KV memory of the engine (with --url, default: the reported one)",
    )
    parser.add_argument(
        "--out", type=Path, help="file for the profile; with --check, for the figures"
    )
    parser.add_argument("--name", help="name of the profile (default: the stem of --out)")
    parser.add_argument(
        "--start",
        metavar="NAME_OR_FILE",
        help="profile that gives the rules of the engine (default: those of vLLM)",
    )
    parser.add_argument("--profile", metavar="NAME_OR_FILE", help="profile to check")
    parser.add_argument(
        "--policy", help="policy of the measured runs, instead of that in their names"
    )
    parser.add_argument(
        "--added-prompt-tokens",
        type=int,
        metavar="N",
        help="tokens that the engine adds to each prompt and the files omit, as BOS (default 0;"
        " with --check: the number that the profile was fitted with)",
    )
    parser.add_argument(
        "--model", help="model to request from --url (default: the only one served)"
    )
    parser.add_argument(
        "--save-requests", type=Path, metavar="FILE", help="with --url: file for the timed requests"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Fit an engine profile to measured requests and write it, or check one against them.

    Raises:
        ConfigError: If an option or a file is wrong.
        ConnectionError: If the live service cannot be reached.
        ResponseError: If the live service answers with an error.
    """
    added = options.added_prompt_tokens
    if added is not None and added < 0:
        raise ConfigError(f"--added-prompt-tokens must be a whole number >= 0, got {added}")
    for path in (options.out, options.save_requests):
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"{path}: there is no directory {path.parent} to write it to")
    if options.check is not None:
        return _check_options(options, added)
    if options.out is None:
        raise ConfigError("--out is missing: the profile to write")
    kv_tokens = options.kv_tokens
    if (kv_tokens is None and options.url is None) or (kv_tokens is not None and kv_tokens < 1):
        raise ConfigError(f"--kv-tokens must be a whole number >= 1, got {kv_tokens}")
    if options.url is not None:
        requests, reported = asyncio.run(measure_live(options.url, options.model))
        if options.save_requests is not None:
            write_run(options.save_requests, requests)
        runs = [MeasuredRun("live requests", "fcfs", tuple(requests))]
        kv_tokens = kv_tokens or reported
    else:
        runs = [read_run(path, options.policy) for path in options.runs]
    start = _initial_profile(options, kv_tokens)
    fitted = calibrate(runs, start, added or 0)
    content = ProfileFile(fitted.profile, _provenance_of(fitted, runs, added or 0))
    write_profile(options.out, content, _command_line(options))
    _print_errors(fitted.runs)
    print(f"wrote {options.out}: residual {fitted.regression.residual:.2%} of a decode time")
    per_token = fitted.profile.prefill_cost.per_token
    print(f"engine.prefill_cost: {{per_token: {per_token:.4g}}}")
    return 0


def _check_options(options: argparse.Namespace, added: Tokens | None) -> int:
    if options.profile is None:
        raise ConfigError("--profile is missing: the profile to check")
    content = load_profile_file(options.profile)
    if added is None:
        added = content.fitted.added_prompt_tokens if content.fitted else 0
    runs = [read_run(path, options.policy) for path in options.check]
    validations = validate(content.profile, runs, added)
    if options.out is not None:
        _write_json(options.out, content.profile, added, validations)
    _print_errors(validations)
    return 0


def _initial_profile(options: argparse.Namespace, kv_tokens: Tokens) -> EngineProfile:
    if options.start is not None:
        profile = load_profile(options.start)
    else:
        # vLLM's V1 engine recomputes preempted sequences.
        profile = EngineProfile(
            kv_tokens=kv_tokens,
            block_size=16,
            prefill="chunked",
            max_batched_tokens=2048,
            overflow="recompute",
        )
    name = options.name or options.out.name.partition(".")[0]
    return replace(profile, name=name, kv_tokens=kv_tokens)


def _provenance_of(fitted: FittedProfile, runs: Sequence[MeasuredRun], added: Tokens) -> Fitted:
    speeds = zip(runs, fitted.regression.speeds, strict=True)
    return Fitted(
        version=__version__,
        added_prompt_tokens=added,
        residual=round(fitted.regression.residual, 5),
        runs=tuple(FittedRun(run.name, len(run.requests), round(s, 4)) for run, s in speeds),
    )


def _command_line(options: argparse.Namespace) -> list[str]:
    """Return the command line for the head of the profile, with file names in place of paths."""
    words = ["justitia", "calibrate"]
    if options.url is not None:
        words += ["--url", "URL"]
    else:
        words += ["--runs", *(path.name for path in options.runs)]
    for option, value in (
        ("--kv-tokens", options.kv_tokens),
        ("--start", options.start and Path(options.start).name),
        ("--added-prompt-tokens", options.added_prompt_tokens or None),
        ("--policy", options.policy),
        ("--name", options.name),
        ("--out", options.out.name),
    ):
        if value is not None:
            words += [option, str(value)]
    lines = ["Fitted by"]
    for word in map(shlex.quote, words):
        if len(lines) == 1 or len(lines[-1]) + len(word) > 95:
            lines.append("   ")
        lines[-1] += f" {word}"
    return lines


def _write_json(
    path: Path, profile: EngineProfile, added: Tokens, validations: Sequence[RunValidation]
) -> None:
    values = {
        "version": __version__,
        "profile": asdict(profile),
        "added_prompt_tokens": added,
        "median_absolute_error": {name: _median_error(validations, name) for name in SHOWN},
        "runs": [asdict(validation) for validation in validations],
    }
    text = json.dumps(values, indent=2) + "\n"
    with replacing_text(path) as file:
        file.write(text)


def _print_errors(validations: Sequence[RunValidation]) -> None:
    for validation in validations:
        print(f"{validation.run} ({validation.policy}, {validation.requests} requests)")
        for name in SHOWN:
            figure = getattr(validation, name)
            error = "" if figure.error is None else f"{figure.error:+.1%}"
            print(
                f"    {name:28}{figure.measured:12.3f} measured"
                f"{figure.simulated:12.3f} simulated {error:>8}"
            )
        print(f"    {'service_error':28}{validation.service_error:12.1%}")
    medians = ", ".join(f"{name} {_median_error(validations, name):.1%}" for name in SHOWN)
    print(f"median absolute error: {medians}")


def _median_error(validations: Sequence[RunValidation], name: str) -> float:
    figures: list[ComparedFigure] = [getattr(validation, name) for validation in validations]
    errors = [abs(figure.error) for figure in figures if figure.error is not None]
    return statistics.median(errors or [0.0])
