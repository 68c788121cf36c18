"""`justitia dashboard`: write the Grafana dashboard that is shipped with this version."""

import argparse
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from justitia_ray.errors import ConfigError


def add_subcommand(commands: Any) -> None:
    parser = commands.add_parser(
        "dashboard",
        help="write the Grafana dashboard of this version",
        description=(
            "Write the Grafana dashboard of this version's metrics, as JSON to import or provision."
        ),
    )
    parser.add_argument("--out", type=Path, help="file to write (default: standard output)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the Grafana dashboard to a file or to standard output.

    Raises:
        ConfigError: If the file cannot be written.
    """
    dashboard = files("justitia_ray.observability").joinpath("dashboard.json").read_text("utf-8")
    if options.out is None:
        sys.stdout.write(dashboard)
        return 0
    try:
        options.out.write_text(dashboard, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {options.out} cannot be written: {error.strerror}") from None
    return 0
