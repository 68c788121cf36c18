"""`justitia check-config`: what is wrong with a Serve configuration file, before it is deployed."""

import argparse
import sys
from pathlib import Path
from typing import Any


def add_to(commands: Any) -> None:
    """Add the subcommand to argparse's subparsers."""
    parser = commands.add_parser(
        "check-config",
        help="check a Serve configuration file",
        description=(
            "Check a Serve configuration file against Serve's schema and this project's: one line"
            " for each error, with its key, its value and what is allowed. Exit status 2 if there"
            " is any."
        ),
    )
    parser.add_argument("file", type=Path, help="the YAML file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the errors of the file and return 2, or say that it is fine and return 0.

    Raises:
        ConfigError: If the file cannot be read.
    """
    from justitia_ray.serve.ops.config_file import check_file

    checked = check_file(options.file)
    for error in checked.errors:
        print(f"{options.file}: {error}", file=sys.stderr)
    if checked.errors:
        return 2
    for application in checked.applications:
        models = ", ".join(
            f"model {name}, policy {scheduling.policy}"
            for name, scheduling in application.scheduling.items()
        )
        print(f"{options.file}: application {application.serve_name!r} is fine: {models}")
    return 0
