"""The `justitia` command: parses the arguments and returns the exit status.

Exit status: 0: done; 1: the service or the cluster did not do what was requested; 2: the user's
input is wrong. For a user's mistake or a missing extra, the command prints one sentence and no
traceback.
"""

import argparse
import importlib
import sys
from collections.abc import Iterable, Sequence

from justitia_ray import __version__
from justitia_ray.errors import ConfigError, JustitiaError

COMMANDS = {
    "status": "status",
    "top": "top",
    "why": "why",
    "share": "share",
    "usage": "usage",
    "doctor": "doctor",
    "check-config": "check_config",
    "env": "env",
    "shutdown": "shutdown",
    "keys": "keys",
    "workload": "workload",
    "simulate": "simulate",
    "replay": "replay",
    "calibrate": "calibrate",
    "report": "report",
    "predictor": "predictor",
    "data": "data",
    "dashboard": "dashboard",
}
"""Module of each command; only the given command's module is imported, to start fast."""
_EXTRAS = {
    **dict.fromkeys(("doctor", "check-config", "env", "shutdown", "keys"), "serve"),
    "report": "lab",
}
"""Extra of the Python package that a command needs, by command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a `justitia` command and return its exit status.

    Args:
        arguments: Arguments without the program's name; None: this process's arguments.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    command = words[0] if words and words[0] in COMMANDS else None
    try:
        options = command_parser(COMMANDS if command is None else [command]).parse_args(words)
        return int(options.run(options))
    except ConfigError as error:
        print(f"justitia {command}: {error}", file=sys.stderr)
        return 2
    except (JustitiaError, ConnectionError) as error:
        print(f"justitia {command}: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if command is None or not _is_of_an_extra(command, error):
            raise
        print(f"justitia {command}: {_install_advice(command, error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def command_parser(names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="justitia",
        description=(
            "Operate justitia_ray applications on Ray Serve, and simulate your traffic under other"
            " policies."
        ),
    )
    parser.add_argument("--version", action="version", version=f"justitia {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in names:
        try:
            importlib.import_module(f"justitia_ray.cli.{COMMANDS[name]}").add_subcommand(commands)
        except ModuleNotFoundError as error:
            if names is not COMMANDS or not _is_of_an_extra(name, error):
                raise
            commands.add_parser(name, help=_install_advice(name, error))
    return parser


def _is_of_an_extra(command: str, error: ModuleNotFoundError) -> bool:
    """Return whether a missing module would be installed with an extra of this package."""
    is_ours = error.name is None or error.name.startswith("justitia_ray")
    return command in _EXTRAS and not is_ours


def _install_advice(command: str, error: ModuleNotFoundError) -> str:
    return (
        f"the Python module {error.name} is not installed, which this command needs: "
        f"pip install 'justitia-ray[{_EXTRAS[command]}]'"
    )


if __name__ == "__main__":
    sys.exit(main())
