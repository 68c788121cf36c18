"""The `justitia` command: arguments in, exit status out.

Exit status: 0, done; 1, the service or the cluster did not do what was asked; 2, the user's input
is wrong. A user's mistake gives one sentence and no traceback.
"""

import argparse
import importlib
import sys
from collections.abc import Iterable, Sequence

from justitia_ray import __version__
from justitia_ray.errors import ConfigError, JustitiaError

COMMANDS = {
    "status": "status",
    "doctor": "doctor",
    "check-config": "check_config",
    "shutdown": "shutdown",
    "workload": "workload",
    "simulate": "simulate",
    "replay": "replay",
    "calibrate": "calibrate",
    "report": "report",
    "predictor": "predictor",
    "data": "data",
    "dashboard": "dashboard",
}
"""Modules by command. Only the one that is asked for is imported: some take a second to come."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    Args:
        arguments: Without the program's name; by default those of this process.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    asked_for = words[:1] if words[:1] and words[0] in COMMANDS else COMMANDS
    options = _parser(asked_for).parse_args(words)
    try:
        return int(options.run(options))
    except ConfigError as error:
        print(f"justitia {options.command}: {error}", file=sys.stderr)
        return 2
    except (JustitiaError, ConnectionError) as error:
        print(f"justitia {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser(names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="justitia",
        description=(
            "Look after justitia_ray applications on Ray Serve, and find out what other policies"
            " would do to your traffic."
        ),
    )
    parser.add_argument("--version", action="version", version=f"justitia {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in names:
        importlib.import_module(f"justitia_ray.cli.{COMMANDS[name]}").add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
