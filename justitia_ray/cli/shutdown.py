"""`justitia shutdown`: end applications and their detached schedulers."""

import argparse
import sys
from pathlib import Path
from typing import Any

from justitia_ray.errors import ConfigError


def add_subcommand(commands: Any) -> None:
    parser = commands.add_parser(
        "shutdown",
        help="end applications on a running Ray cluster",
        description=(
            "Delete the Serve applications of justitia_ray, then end their schedulers, which are"
            " detached actors and outlive them, and the embedded Redis of each; by default all"
            " applications on the cluster. Their data are kept; Ray and Serve keep running."
        ),
    )
    parser.add_argument("--config", type=Path, help="end only the applications of this file")
    parser.add_argument("--name", help="end only applications of this name (`name` in args)")
    parser.add_argument(
        "--model",
        help="with --name: end only the application that serves this model and no other, or the"
        " scheduler of a model that has been removed",
    )
    parser.add_argument(
        "--address",
        default="auto",
        help="address of the Ray cluster (default auto: the one of this machine)",
    )
    parser.add_argument(
        "--wait-s",
        type=float,
        default=30.0,
        help="seconds after which calls in flight are cut (default 30)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """End the selected applications and print them; return 1 if some did not end.

    Raises:
        ConfigError: If options contradict each other, or the file is wrong.
        ConnectionError: If no Ray runs at the address.
    """
    if options.config is not None and options.name is not None:
        raise ConfigError("--config and --name cannot be given together")
    if options.model is not None and options.name is None:
        raise ConfigError("--model needs --name, the name of its application")
    from justitia_ray.serve.ops.config_file import read_applications
    from justitia_ray.serve.ops.shutdown import Chosen, shut_down

    chosen = Chosen(options.name, options.model)
    if options.config is not None:
        in_file = read_applications(options.config)
        chosen = Chosen(configs={a.serve_name: a.configs for a in in_file})
    outcome = shut_down(chosen, options.address, options.wait_s)
    for line in outcome.ended:
        print(line)
    for line in outcome.left:
        print(f"justitia shutdown: {line}", file=sys.stderr)
    if not outcome.ended and not outcome.left:
        print("nothing of justitia_ray that was asked for runs on this cluster")
    return 1 if outcome.left else 0
