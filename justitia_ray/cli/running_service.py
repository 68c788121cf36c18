"""Common parts of commands that call a running service: its URL, and output once or repeatedly."""

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
    """Add the options of a command that calls a service: URL, timeout and repetition."""
    parser.add_argument(
        "--url", default=DEFAULT_URL, help=f"URL of the service (default {DEFAULT_URL})"
    )
    if watches:
        parser.add_argument(
            "--watch",
            type=float,
            metavar="SECONDS",
            help="interval at which the output is repeated, until Ctrl-C",
        )
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=10.0,
        help="seconds for which the service may be silent (default 10)",
    )


def connect(options: argparse.Namespace) -> HttpTransport:
    """Return the transport to the service named by the options of `add_connection`."""
    limit_s = options.timeout_s
    return HttpTransport(options.url, connect_timeout_s=limit_s, read_timeout_s=limit_s)


def check_applications(count: int) -> None:
    """Check the value of `--applications`.

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
    """Print a text, once or repeatedly until interrupted.

    In repetition, a service that does not answer is reported on stderr and called again: it may be
    back.

    Args:
        command: Name of the command.
        text: Requests and returns the text.
        every_s: Time between two requests; None: print once.
        in_place: Whether a terminal is cleared before each text.

    Raises:
        ConfigError: If the time is not above 0.
        ResponseError: If the service answered with an error, without repetition.
        ConnectionError: If it did not answer, without repetition.
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
