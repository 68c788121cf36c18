"""Common parts of commands that call a running service: its URL, and output once or repeatedly."""

import argparse
import asyncio
import json
import math
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from justitia_ray.client.transport import HttpTransport
from justitia_ray.errors import ConfigError, ResponseError
from justitia_ray.protocol.inspection import MAX_LISTED_APPLICATIONS
from justitia_ray.units import Seconds

Json = Mapping[str, Any]
T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8000"
_CLEAR = "\x1b[2J\x1b[H"


def add_connection(parser: argparse.ArgumentParser, *, watches: bool = True) -> None:
    """Add the options of a command that calls a service: URL, timeout and repetition."""
    parser.add_argument(
        "--url", default=DEFAULT_URL, help=f"URL of the service (default {DEFAULT_URL})"
    )
    parser.set_defaults(watch=None)
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
    """Return an HTTP transport to the service named by `--url` and `--timeout-s`.

    Raises:
        ConfigError: If one of them is not allowed.
    """
    limit_s = options.timeout_s
    if not limit_s > 0:
        raise ConfigError(f"--timeout-s is {limit_s:g}: a number of seconds above 0 is allowed")
    return HttpTransport(options.url, connect_timeout_s=limit_s, read_timeout_s=limit_s)


def check_applications(count: int) -> None:
    """Raise ConfigError if `--applications` is outside the range that listings allow."""
    if not 0 <= count <= MAX_LISTED_APPLICATIONS:
        raise ConfigError(
            f"--applications is {count}: an integer from 0 to {MAX_LISTED_APPLICATIONS:,} is"
            " allowed"
        )


def show_answer(
    command: str,
    options: argparse.Namespace,
    ask: Callable[[HttpTransport, argparse.Namespace], Awaitable[T]],
    text: Callable[[T], str],
) -> int:
    """Request a document from the service and print it, once or until interrupted.

    In repetition, a service that does not answer is reported on stderr, and called again because it
    may return.

    Args:
        command: Name of the command.
        options: Options of `add_connection`, and `json`: whether the answer is printed as JSON.
        ask: Requests the answer.
        text: Returns the answer as text.

    Raises:
        ConfigError: If the interval of repetition is not above 0.
        ResponseError: If the service answered with an error, without repetition.
        ConnectionError: If the service did not answer, without repetition.
    """

    async def request_answer() -> T:
        async with aclosing(connect(options)) as http:
            return await ask(http, options)

    def answer_text() -> str:
        answer = asyncio.run(request_answer())
        return json.dumps(answer, indent=2) if options.json else text(answer)

    every_s: Seconds | None = options.watch
    if every_s is None:
        print(answer_text())
        return 0
    if not 0 < every_s < math.inf:
        raise ConfigError(f"--watch is {every_s:g}: a number of seconds above 0 is allowed")
    clear = _CLEAR if sys.stdout.isatty() and not options.json else ""
    while True:
        try:
            print(f"{clear}{answer_text()}", flush=True)
        except (ConnectionError, ResponseError) as error:
            print(f"justitia {command}: {error}", file=sys.stderr, flush=True)
        time.sleep(every_s)
