"""`justitia dashboard`: the Grafana dashboard, for an installation without this repository."""

import argparse
import sys
from pathlib import Path
from typing import Any

from justitia_ray.errors import ConfigError
from justitia_ray.observability.dashboard import dashboard_text


def add_to(commands: Any) -> None:
    """Add the subcommand to argparse's subparsers."""
    parser = commands.add_parser(
        "dashboard",
        help="write the Grafana dashboard of this version",
        description=(
            "Write the Grafana dashboard of this version's metrics, as JSON to import or provision."
        ),
    )
    parser.add_argument("--out", type=Path, help="the file (default: standard output)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write it and return 0.

    Raises:
        ConfigError: If the file cannot be written.
    """
    if options.out is None:
        sys.stdout.write(dashboard_text())
        return 0
    try:
        options.out.write_text(dashboard_text(), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {options.out} cannot be written: {error.strerror}") from None
    return 0
