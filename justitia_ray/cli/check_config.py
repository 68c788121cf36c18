"""`justitia check-config`: find the errors of a Serve configuration file before deployment."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from justitia_ray.serve.ops.config_file import CheckedApplication


def add_subcommand(commands: Any) -> None:
    parser = commands.add_parser(
        "check-config",
        help="check a Serve configuration file",
        description=(
            "Check a Serve configuration file against Serve's schema and this project's: one line"
            " for each error, with key, value and allowed values. Exit status 2 if there is an"
            " error. A moved key is reported with its new place."
        ),
    )
    parser.add_argument("file", type=Path, help="the YAML file")
    parser.add_argument(
        "--without-vllm",
        action="store_true",
        help="skip the check of vllm_args by vLLM's parser, which takes ten seconds to import",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the errors of a configuration file and return 2; return 0 if it has none.

    Raises:
        ConfigError: If the file cannot be read.
    """
    from justitia_ray.serve.ops.config_file import check_file

    checked = check_file(options.file)
    errors = [*checked.errors, *_engine_errors(checked.applications, not options.without_vllm)]
    for error in errors:
        print(f"{options.file}: {error}", file=sys.stderr)
    if errors:
        return 2
    for application in checked.applications:
        models = ", ".join(
            f"model {name}, policy {scheduling.policy}"
            for name, scheduling in application.scheduling.items()
        )
        print(f"{options.file}: application {application.serve_name!r} is fine: {models}")
        for name, scheduling in application.scheduling.items():
            if scheduling.advice is not None:
                print(f"{options.file}: model {name!r}: {scheduling.advice}", file=sys.stderr)
    return 0


def _engine_errors(applications: "Sequence[CheckedApplication]", ask_vllm: bool) -> Iterator[str]:
    """Yield an error for each model whose vLLM engine would reject its arguments."""
    from justitia_ray.serve.engines.argument_checks import engine_mistake, parser_mistakes

    for application in applications:
        known = {c.model.name: engine_mistake(c) for c in application.configs}
        mistakes = {name: mistake for name, mistake in known.items() if mistake is not None}
        others = [c for c in application.configs if c.model.name not in mistakes]
        said = parser_mistakes(others) if ask_vllm else {}
        if said is None:
            print("vLLM is not installed here: its parser has not seen vllm_args", file=sys.stderr)
        for name, mistake in (mistakes | (said or {})).items():
            yield f"application {application.serve_name!r}, model {name!r}: {mistake}"
