"""Output that the benchmarks share: machine description, progress lines, the JSON file."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from justitia_ray import __version__
from justitia_ray.atomic_files import replacing_text
from scripts.bench.machine import machine


def print_machine(packages: Sequence[str] = ()) -> dict[str, str]:
    about = machine(packages)
    print(f"justitia_ray {__version__}: {', '.join(f'{k} {v}' for k, v in about.items())}")
    return about


def progress_printer() -> Callable[[str], None]:
    """Return a function that prints a line with the seconds elapsed since now."""
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"  {time.monotonic() - started:5.0f} s  {line}", flush=True)

    return say


def write_json(file: Path | None, values: Mapping[str, Any]) -> None:
    """Write a result with the release's version, and print the path; without a file do nothing."""
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing_text(file) as text:
        text.write(json.dumps({"justitia_ray": __version__, **values}, indent=1) + "\n")
    print(f"JSON: {file}")
