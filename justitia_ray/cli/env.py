"""`justitia env`: print the environment variables with which Ray should start on this machine."""

import argparse
import json
import shlex
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from justitia_ray.config import IngressSection
from justitia_ray.errors import ConfigError
from justitia_ray.serve.front import FrontPlan, plan_front

_WIDTH = 100


def add_subcommand(commands: Any) -> None:
    parser = commands.add_parser(
        "env",
        help="print the environment that Ray should start with on this machine",
        description=(
            "Print the environment variables that make Ray Serve's front cheap: HAProxy in place of"
            " Serve's own proxy where it can run, with a limit of connections that fits into"
            " `ulimit -Hn`, each with its reason. They must be set on every node before Ray"
            ' starts: eval "$(justitia env FILE)". The service works without them, at about three'
            " times the CPU a call. `justitia doctor` shows which front runs."
        ),
    )
    parser.add_argument(
        "file",
        type=Path,
        nargs="?",
        help="the Serve configuration file that will be deployed: the limit of connections then"
        " covers its callers (ingress.max_outstanding), and HAProxy, which has no TLS, is left out"
        " where http_options.ssl_certfile asks for it",
    )
    parser.add_argument(
        "--descriptors",
        type=int,
        metavar="N",
        help="open files that a process may have on the target machine (default: on this one)",
    )
    parser.add_argument(
        "--format",
        choices=tuple(_FORMATS),
        default="shell",
        help="shell: for eval (default); dotenv: NAME=value; yaml: `env` of a Kubernetes container",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the environment variables for Ray, each with a comment that gives its reason.

    Raises:
        ConfigError: If an option, the file or the environment is wrong.
    """
    if options.descriptors is not None and options.descriptors < 1:
        raise ConfigError(f"--descriptors is {options.descriptors}: 1 or more is allowed")
    callers, tls = IngressSection().max_outstanding, False
    if options.file is not None:
        from justitia_ray.serve.ops.config_file import asks_for_tls, most_callers

        callers, tls = most_callers(options.file), asks_for_tls(options.file)
    plan = plan_front(callers, options.descriptors, tls=tls)
    print(_variable_text(plan, _FORMATS[options.format]))
    return 0


def _variable_text(plan: FrontPlan, line: Callable[[str, str], str]) -> str:
    lines = [comment for note in plan.notes for comment in _comment_text(note)]
    for setting in plan.settings:
        lines += [*_comment_text(setting.reason), line(setting.name, setting.value)]
    return "\n".join(lines)


def _comment_text(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")


_FORMATS: dict[str, Callable[[str, str], str]] = {
    "shell": lambda name, value: f"export {name}={shlex.quote(value)}",
    "dotenv": lambda name, value: f"{name}={value}",
    "yaml": lambda name, value: f"- {{name: {name}, value: {json.dumps(value)}}}",
}
