"""Commands that ask a running service: where it is, and what it says, once or until Ctrl-C."""

import argparse
import math
import sys
import time
from collections.abc import Callable

from justitia_ray.client.transport import HttpTransport
from justitia_ray.errors import ConfigError, ResponseError
from justitia_ray.protocol.inspection import MAX_LISTED_APPLICATIONS
from justitia_ray.units import Seconds

DEFAULT_URL = "http://127.0.0.1:8000"
_CLEAR = "\x1b[2J\x1b[H"


def add_connection(parser: argparse.ArgumentParser, *, watches: bool = True) -> None:
    """Add the options of a command that asks a service: where it is, and how often."""
    parser.add_argument(
        "--url", default=DEFAULT_URL, help=f"where the application is served; {DEFAULT_URL}"
    )
    if watches:
        parser.add_argument(
            "--watch", type=float, metavar="SECONDS", help="show it again so often, until Ctrl-C"
        )
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=10.0,
        help="how long the service may be silent, in seconds; 10",
    )


def connect(options: argparse.Namespace) -> HttpTransport:
    """Return the way to the service that the options of `add_connection` name."""
    limit_s = options.timeout_s
    return HttpTransport(options.url, connect_timeout_s=limit_s, read_timeout_s=limit_s)


def check_applications(count: int) -> None:
    """Refuse a value of `--applications` of which there is no listing.

    Raises:
        ConfigError: If it is not in the range of a listing.
    """
    if not 0 <= count <= MAX_LISTED_APPLICATIONS:
        raise ConfigError(
            f"--applications is {count}: an integer from 0 to {MAX_LISTED_APPLICATIONS:,} is"
            " allowed"
        )


def show(
    command: str, text: Callable[[], str], every_s: Seconds | None, *, in_place: bool = True
) -> None:
    """Print a text, once or until interrupted.

    A service that does not answer is told of on stderr when the text is shown again and again: it
    may be back at the next look.

    Args:
        command: Name of the command.
        text: Asks for what is to be shown.
        every_s: Time between two looks; None: there is one.
        in_place: Whether a terminal is cleared before each.

    Raises:
        ConfigError: If the time is not above 0.
        ResponseError: If the service answered with an error, and is asked once.
        ConnectionError: If it did not answer, and is asked once.
    """
    if every_s is None:
        print(text())
        return
    if not 0 < every_s < math.inf:
        raise ConfigError(f"--watch is {every_s:g}: a number of seconds above 0 is allowed")
    while True:
        try:
            told = text()
        except (ConnectionError, ResponseError) as error:
            print(f"justitia {command}: {error}", file=sys.stderr, flush=True)
        else:
            print(f"{_CLEAR if in_place and sys.stdout.isatty() else ''}{told}", flush=True)
        time.sleep(every_s)
