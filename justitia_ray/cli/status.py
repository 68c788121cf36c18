"""`justitia status`: what a running service says of itself."""

import argparse
import asyncio
import json
import math
import sys
import time
from typing import Any
from urllib.parse import urlencode

from justitia_ray.cli.status_table import readable
from justitia_ray.client.answers import json_object
from justitia_ray.client.transport import HttpTransport
from justitia_ray.errors import ConfigError, ResponseError

DEFAULT_URL = "http://127.0.0.1:8000"
_MOST_APPLICATIONS = 1_000
_CLEAR = "\x1b[2J\x1b[H"


def add_to(commands: Any) -> None:
    """Add the subcommand to argparse's subparsers."""
    parser = commands.add_parser(
        "status",
        help="show what a running service says of itself",
        description=(
            "Show policy, queue, replicas, Redis, the first applications in order and the"
            " predictor's versions of a running service (GET /v1/status and /v1/predictor)."
        ),
    )
    parser.add_argument(
        "--url", default=DEFAULT_URL, help=f"where the application is served; {DEFAULT_URL}"
    )
    parser.add_argument("--model", help="only this one, where several are served; all")
    parser.add_argument(
        "--applications",
        type=int,
        default=10,
        metavar="N",
        help=f"show the first N live ones in order, at most {_MOST_APPLICATIONS:,}; 10",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--watch", type=float, metavar="SECONDS", help="show it again so often, until Ctrl-C"
    )
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=10.0,
        help="how long the service may be silent, in seconds; 10",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Ask the service and print its answer, once or until interrupted.

    Raises:
        ConfigError: If an option is wrong.
        ResponseError: If the service answered with an error.
        ConnectionError: If it did not answer.
    """
    if not 0 <= options.applications <= _MOST_APPLICATIONS:
        raise ConfigError(
            f"--applications is {options.applications}: an integer from 0 to"
            f" {_MOST_APPLICATIONS:,} is allowed"
        )
    if options.watch is None:
        print(_told(options))
        return 0
    if not 0 < options.watch < math.inf:
        raise ConfigError(f"--watch is {options.watch:g}: a number of seconds above 0 is allowed")
    while True:
        try:
            told = _told(options)
        except (ConnectionError, ResponseError) as error:  # it may be back at the next look
            print(f"justitia status: {error}", file=sys.stderr, flush=True)
        else:
            clear = _CLEAR if sys.stdout.isatty() and not options.json else ""
            print(f"{clear}{told}", flush=True)
        time.sleep(options.watch)


def _told(options: argparse.Namespace) -> str:
    seen = asyncio.run(_look(options))
    return json.dumps(seen, indent=2) if options.json else readable(seen)


async def _look(options: argparse.Namespace) -> dict[str, Any]:
    """Return `{"ready": …, "models": {name: its status, with its `predictor`}}`."""
    named = {} if options.model is None else {"model": options.model}
    transport = HttpTransport(
        options.url, connect_timeout_s=options.timeout_s, read_timeout_s=options.timeout_s
    )
    try:
        query = urlencode({"applications": options.applications, **named})
        status = json_object(await transport.request("GET", f"/v1/status?{query}", {}))
        predictor = await _predictor(transport, urlencode(named))
    finally:
        await transport.aclose()
    models = status.get("models")
    if not isinstance(models, dict):
        name = str(status.get("model", "model"))
        return {"ready": status.get("ready", False), "models": {name: status | predictor}}
    of_models = predictor["predictor"].get("models", {})
    return {
        "ready": status.get("ready", False),
        "models": {
            name: told | {"predictor": of_models.get(name, predictor["predictor"])}
            for name, told in models.items()
        },
    }


async def _predictor(transport: HttpTransport, query: str) -> dict[str, dict[str, Any]]:
    """Return what the predictor says of itself; one that is away hides nothing else."""
    try:
        answer = await transport.request("GET", f"/v1/predictor{query and '?'}{query}", {})
        return {"predictor": json_object(answer)}
    except (ConnectionError, ResponseError) as error:
        return {"predictor": {"error": str(error)}}
