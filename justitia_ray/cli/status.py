"""`justitia status`: what a running service says of itself."""

import argparse
import asyncio
import json
from collections.abc import Mapping
from typing import Any

from justitia_ray.client.answers import json_object
from justitia_ray.client.paths import of_model
from justitia_ray.client.transport import HttpTransport

DEFAULT_URL = "http://127.0.0.1:8000"


def add_to(commands: Any) -> None:
    """Add the subcommand to argparse's subparsers."""
    parser = commands.add_parser(
        "status",
        help="show what a running service says of itself",
        description="Show policy, queue and replicas of a running service (GET /v1/status).",
    )
    parser.add_argument(
        "--url", default=DEFAULT_URL, help=f"where the application is served; {DEFAULT_URL}"
    )
    parser.add_argument("--model", help="only this one, where several are served; all")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=10.0,
        help="how long the service may be silent, in seconds; 10",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Ask the service and print its answer.

    Raises:
        ConfigError: If the URL is not an http(s) URL.
        ResponseError: If the service answered with an error.
        ConnectionError: If it did not answer.
    """
    answer = asyncio.run(_ask(options.url, options.model, options.timeout_s))
    print(json.dumps(answer, indent=2) if options.json else readable(answer))
    return 0


async def _ask(url: str, model: str | None, timeout_s: float) -> dict[str, Any]:
    transport = HttpTransport(url, connect_timeout_s=timeout_s, read_timeout_s=timeout_s)
    try:
        return json_object(await transport.request("GET", of_model("/v1/status", model), {}))
    finally:
        await transport.aclose()


def readable(answer: Mapping[str, Any]) -> str:
    """Return the answer as lines for a terminal; of several models one after the other.

    A scheduler that is still starting says little of itself: what it leaves out is left out here.
    """
    if isinstance(answer.get("models"), Mapping):
        return "\n\n".join(readable(of_one) for of_one in answer["models"].values())
    lines = [f"{name:<14}{value}" for name, value in _facts(answer) if value is not None]
    replicas: Mapping[str, Mapping[str, Any]] = answer.get("replicas", {})
    if replicas:
        lines += ["", f"{'replica':<14}{'KV tokens':>10}{'leases':>8}{'silent s':>10}  state"]
        lines += [
            f"{replica_id:<14}{replica['kv_tokens']:>10,}{replica['leases']:>8}"
            f"{replica['silent_s']:>10.1f}  {'draining' if replica['draining'] else 'serving'}"
            for replica_id, replica in replicas.items()
        ]
    return "\n".join(lines)


def _facts(answer: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    settings = answer.get("settings", {})
    kv = answer.get("kv", {})
    used, there = kv.get("used_token_s", 0), kv.get("capacity_token_s", 0)
    return [
        ("model", answer.get("model")),
        ("state", _state(answer)),
        ("version", answer.get("version")),
        ("policy", _join(answer.get("policy"), settings.get("admission"), ", admission ")),
        ("scheduler", f"epoch {answer['epoch']}" if "epoch" in answer else None),
        ("applications", _count(answer, "applications", "open")),
        ("inferences", _inferences(answer)),
        ("backlog", _count(answer, "backlog_kv_tokens", "KV tokens")),
        ("ingresses", _count(answer, "ingresses", "")),
        ("replicas", f"{len(answer['replicas'])}" if "replicas" in answer else None),
        ("KV used", f"{used / there:.0%} on average since the start" if there else None),
        ("preemptions", f"{kv['preemptions']:,}" if "preemptions" in kv else None),
    ]


def _state(answer: Mapping[str, Any]) -> str:
    if not answer.get("ready"):
        return f"not ready: {answer.get('degraded') or 'not in office'}"
    if answer.get("degraded") is not None:
        return f"degraded: {answer['degraded']}"
    if not answer.get("replicas", True):
        return "not ready: no replica pulls; engines may be loading"
    return "recovering" if answer.get("recovering") else "ready"


def _inferences(answer: Mapping[str, Any]) -> str | None:
    if "waiting" not in answer:
        return None
    kept_out = answer.get("kept_out", 0)
    return (
        f"{answer['waiting']:,} waiting"
        + (f" ({kept_out:,} for silent ingresses)" if kept_out else "")
        + f", {answer['in_flight']:,} leased or running, {answer['grants']:,} granted"
    )


def _count(answer: Mapping[str, Any], key: str, unit: str) -> str | None:
    return f"{answer[key]:,} {unit}".rstrip() if key in answer else None


def _join(first: str | None, second: str | None, between: str) -> str | None:
    return first if first is None or second is None else f"{first}{between}{second}"
