"""`justitia data import`: import a user's history into a running service or a data directory.

The file holds JSON lines, one finished application per line:

    {"class": "report", "input": "…", "inferences": [{"prompt_tokens": 812, "output_tokens": 64}]}

All fields are required, other fields are refused, and each count must be at least 1. Blank lines
are skipped. The cost of an application is computed from its inferences.
"""

import argparse
import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from justitia_ray.cli.running_service import DEFAULT_URL
from justitia_ray.client.calls import json_object, path_for_model
from justitia_ray.client.transport import HttpTransport, Response
from justitia_ray.errors import ConfigError, JustitiaError, RequestError
from justitia_ray.json_lines import JsonRecord, read_records
from justitia_ray.predictor.class_names import check_class_name
from justitia_ray.predictor.observation import Observation, Sample
from justitia_ray.sim.result_files import writing
from justitia_ray.sim.suites.recorded import PLAYED_CLASSES
from justitia_ray.units import Seconds, Tokens

_FIELDS = {"class", "input", "inferences"}
_COUNTS = ("prompt_tokens", "output_tokens")
_BATCH = 200
"""Number of applications per request; the features of a long input take some 10 KB."""
_PATIENCE_S: Seconds = 120.0
_PAUSE_S: Seconds = 2.0
_SERVICE_UNAVAILABLE = 503


@dataclass(frozen=True, slots=True)
class PastApplication:
    """A finished application, as read from a line of the imported history."""

    application_class: str
    input: str
    calls: tuple[tuple[Tokens, Tokens], ...]
    """Prompt and output tokens of each inference of the application."""

    def observation(self) -> Observation:
        """Return the application as an observation for the predictor, without the input text."""
        sample = Sample.of_calls(self.calls, self.input).without_text()
        return Observation(self.application_class, sample)


def add_subcommand(commands: Any) -> None:
    parser = commands.add_parser(
        "data",
        help="import your own history of applications",
        description="Import your own history of finished applications.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    importing = actions.add_parser(
        "import",
        help="import a file of JSON lines",
        description=(
            "Read finished applications, one a line: {class, input, inferences: [{prompt_tokens,"
            " output_tokens}, …]}. With --url, a running service learns from them: only features of"
            " the inputs are sent, the texts are not. With --out, they become a data directory"
            " for `justitia predictor train`. The whole file is checked before any line is used."
        ),
    )
    importing.add_argument("--file", type=Path, required=True, metavar="FILE", help="may be a .gz")
    target = importing.add_mutually_exclusive_group(required=True)
    target.add_argument(
        "--url",
        nargs="?",
        const=DEFAULT_URL,
        help=f"URL of a running service (default {DEFAULT_URL})",
    )
    target.add_argument("--out", type=Path, metavar="DIR", help="a new data directory")
    importing.add_argument(
        "--skip",
        type=int,
        default=0,
        metavar="N",
        help="with --url: lines already learned, to skip (default 0)",
    )
    importing.add_argument(
        "--model", help="with --url: the model that learns, if several are served"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Import a history of finished applications and print a summary.

    Raises:
        ConfigError: If an option or a line of the file is wrong; nothing was imported.
        ResponseError, ConnectionError: If the service accepted only a part of the file; the message
            says how much.
    """
    counts = Counter(application.application_class for application in read_history(options.file))
    total = counts.total()
    if not total:
        raise ConfigError(f"{options.file}: holds no application")
    if not 0 <= options.skip < total:
        raise ConfigError(f"--skip must be 0 to {total - 1}, got {options.skip}")
    if options.out is not None:
        if options.skip:
            raise ConfigError("--skip goes with --url, not with --out")
        if options.model is not None:
            raise ConfigError("--model goes with --url, not with --out")
        _write_data_directory(options.out, options.file, counts)
        print(f"{total:,} applications of {len(counts)} classes: {options.out}")
        return 0
    left = itertools.islice(read_history(options.file), options.skip, None)
    asyncio.run(_send_batches(options.url, options.model, left, options.skip))
    print(
        f"{total - options.skip:,} applications of {len(counts)} classes are being learned;"
        " `justitia predictor list --url` shows what came of it"
    )
    return 0


async def _send_batches(
    url: str, model: str | None, applications: Iterator[PastApplication], taken: int
) -> None:
    path = path_for_model("/v1/predictor/samples", model)
    async with aclosing(HttpTransport(url, read_timeout_s=60.0)) as http:
        try:
            while batch := list(itertools.islice(applications, _BATCH)):
                samples = [application.observation().to_dict() for application in batch]
                body = json.dumps({"samples": samples}).encode()
                json_object(await _send_with_retries(http, path, body))
                taken += len(batch)
        except (JustitiaError, ConnectionError) as error:
            if taken:
                raise ConnectionError(
                    f"{error}; {taken} applications were taken: go on with --skip {taken}"
                ) from error
            raise


async def _send_with_retries(transport: HttpTransport, path: str, body: bytes) -> Response:
    """Send a batch to the predictor; retry while it is busy with earlier batches."""
    headers = {"content-type": "application/json"}
    for _ in range(round(_PATIENCE_S / _PAUSE_S)):
        answer = await transport.request("POST", path, headers, body)
        if answer.status != _SERVICE_UNAVAILABLE:
            return answer
        await asyncio.sleep(_PAUSE_S)
    return answer


def _write_data_directory(out: Path, file: Path, classes: Counter[str]) -> None:
    """Write the recorded applications into a data directory, for offline training."""
    for name in ("apps", "recorded"):
        if (out / name).exists():
            raise ConfigError(f"--out {out}: must be a new directory, has {name}/ already")
    if named := sorted(classes.keys() & set(PLAYED_CLASSES)):
        raise ConfigError(
            f"{file}: class {named[0]} is one whose stages are known, which this form does not"
            " tell: import it with --url, or give it another name"
        )
    with writing(out) as directory:
        for kind in ("apps", "recorded"):
            (directory / kind).mkdir()
        for name in sorted(classes):
            with (
                (directory / "apps" / f"{name}.jsonl").open("w", encoding="utf-8") as inputs,
                (directory / "recorded" / f"{name}.jsonl").open("w", encoding="utf-8") as runs,
            ):
                of_class = (a for a in read_history(file) if a.application_class == name)
                for number, application in enumerate(of_class):
                    item_id = f"{name}-{number:06}"
                    item = {"id": item_id, "class": name, "input": application.input, "meta": {}}
                    stage = {"name": "all", "calls": [list(call) for call in application.calls]}
                    run = {"item_id": item_id, "class": name, "stages": [stage]}
                    inputs.write(json.dumps(item) + "\n")
                    runs.write(json.dumps(run) + "\n")


def read_history(path: Path) -> Iterator[PastApplication]:
    """Yield the finished applications of a history file, which may be compressed (`.gz`).

    Raises:
        ConfigError: If the file cannot be read or a line is wrong; the message names file, line and
            field.
    """
    for record in read_records(path):
        yield _parse_application(record)


def _parse_application(record: JsonRecord) -> PastApplication:
    if wrong := sorted(_FIELDS ^ set(record.fields)):
        name = wrong[0]
        allowed = "there" if name in _FIELDS else "one of " + ", ".join(sorted(_FIELDS))
        raise record.error(f"field {name!r}", allowed, record.value(name))
    name, inferences = record.value("class"), record.value("inferences")
    try:
        check_class_name(name if isinstance(name, str) else "")
    except RequestError:
        raise record.error("class", "1 to 64 of A-Z a-z 0-9 . _ -", name) from None
    text = record.text("input")
    if not isinstance(inferences, list) or not inferences:
        raise record.error("inferences", "a list with at least one inference", inferences)
    calls = tuple(
        _parse_call(record, f"inferences[{i}]", call) for i, call in enumerate(inferences)
    )
    return PastApplication(name, text, calls)


def _parse_call(record: JsonRecord, where: str, call: Any) -> tuple[Tokens, Tokens]:
    if not isinstance(call, dict) or set(call) != set(_COUNTS):
        raise record.error(where, "an object of prompt_tokens and output_tokens", call)
    for name in _COUNTS:
        if type(call[name]) is not int or call[name] < 1:
            raise record.error(f"{where}.{name}", "an integer >= 1", call[name])
    return call["prompt_tokens"], call["output_tokens"]
