"""The `justitia` command: arguments in, exit status out.

Exit status: 0, done; 1, the service or the cluster did not do what was asked; 2, the user's input
is wrong. A user's mistake gives one sentence and no traceback.
"""

import argparse
import sys
from collections.abc import Sequence

from justitia_ray import __version__
from justitia_ray.cli import (
    calibrate,
    check_config,
    replay,
    report,
    shutdown,
    simulate,
    status,
    workload,
)
from justitia_ray.errors import ConfigError, JustitiaError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    Args:
        arguments: Without the program's name; by default those of this process.
    """
    options = _parser().parse_args(arguments)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="justitia",
        description="Look after justitia_ray applications on Ray Serve.",
    )
    parser.add_argument("--version", action="version", version=f"justitia {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (
        status,
        shutdown,
        check_config,
        workload,
        simulate,
        replay,
        report,
        calibrate,
    ):
        command.add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
