"""`justitia status`: the state of a running service, as tables for a terminal or as JSON."""

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from justitia_ray.application_key import split_key
from justitia_ray.cli.running_service import add_connection, check_applications, connect, show
from justitia_ray.cli.text_table import cell, text_table
from justitia_ray.client.inspection import ask_each_model
from justitia_ray.protocol.inspection import MAX_LISTED_APPLICATIONS

Json = Mapping[str, Any]

_MOST_CLASSES = 10
_WAITS_FOR = {
    "recovery": "replicas to report what runs",
    "replica": "a replica that takes work",
    "room": "room at a replica",
}


def status_text(seen: Json) -> str:
    """Return the document of `justitia status --json` as text, model by model.

    Fields that a starting scheduler does not report yet are left out.
    """
    return "\n\n".join(_model(name, status) for name, status in seen["models"].items())


def _model(name: str, status: Json) -> str:
    facts = [("model", name), *_facts(status)]
    applications = _applications(status)
    tables = (
        (2, _replicas(status)),
        (applications[0].index("F"), applications),
        (2, _classes(status.get("predictor", {}))),
    )
    return "\n\n".join(
        [
            "\n".join(f"{name:<14}{value}" for name, value in facts if value is not None),
            *(text_table(rows, numbers_from=first) for first, rows in tables if len(rows) > 1),
        ]
    )


def _facts(status: Json) -> list[tuple[str, str | None]]:
    settings, kv = status.get("settings", {}), status.get("kv", {})
    used, there = kv.get("used_token_s", 0), kv.get("capacity_token_s", 0)
    return [
        ("state", _state(status)),
        ("version", status.get("version")),
        ("policy", _join(status.get("policy"), settings.get("admission"), ", admission ")),
        ("scheduler", f"epoch {status['epoch']}" if "epoch" in status else None),
        ("V", _virtual_time(status)),
        ("redis", _store(status.get("store"))),
        ("applications", _count(status, "applications", "open")),
        ("inferences", _inferences(status)),
        ("backlog", _count(status, "backlog_kv_tokens", "KV tokens")),
        ("prompts", _prompts(status)),
        *_next(status),
        ("ingresses", _count(status, "ingresses", "")),
        ("front", _front(status.get("front"))),
        ("replicas", _replica_count(status)),
        ("KV used", f"{used / there:.0%} on average since the start" if there else None),
        ("preemptions", f"{kv['preemptions']:,}" if "preemptions" in kv else None),
        ("engines", _dead_engines(status)),
        ("predictor", _predictor(status.get("predictor"))),
    ]


def _state(status: Json) -> str:
    if not status.get("ready"):
        return f"not ready: {status.get('degraded') or 'not in office'}"
    if status.get("degraded") is not None:
        return f"degraded: {status['degraded']}"
    if not status.get("replicas", True):
        if (status.get("size") or {}).get("wanted") == 0:
            return "ready: no replica is wanted, and the next call starts one"
        return "not ready: no replica pulls; engines may be loading"
    return "recovering" if status.get("recovering") else "ready"


def _replica_count(status: Json) -> str | None:
    """Return the number of replicas; if another number is wanted, also that and the reason."""
    if "replicas" not in status:
        return None
    count, size = len(status["replicas"]), status.get("size")
    if not size or not size["autoscaled"] or size["wanted"] == count:
        return f"{count}"
    return f"{count}, and {size['wanted']} wanted: {size['why']}"


def _dead_engines(status: Json) -> str | None:
    """Return the number of dead engines; None if none has died."""
    failures = status.get("engine_failures") or {}
    if not any(failures.values()):
        return None
    suspects = status.get("suspects", 0)
    return (
        f"{failures.get('crash', 0):,} died by themselves, {failures.get('kill', 0):,} were killed"
        + (f"; {suspects:,} suspects run apart" if suspects else "")
    )


def _store(store: Json | None) -> str | None:
    if store is None:
        return None
    if store["kind"] == "none":
        return "none: nothing is stored (durability none)"
    about = f"{'embedded' if store['kind'] == 'embedded' else 'given'}, {store['durability']}"
    if not store["connected"]:
        about += ", not connected"
    ago = store["saved_s_ago"]
    saved = "nothing saved yet" if ago is None else f"saved {ago:.1f} s ago"
    unsaved = store["unsaved_applications"]
    return (
        f"{about}; {saved}, every {store['save_interval_s']:g} s;"
        f" {unsaved:,} {'application' if unsaved == 1 else 'applications'} to save"
    )


def _front(front: Json | None) -> str | None:
    if front is None:
        return None
    if front["kind"] == "serve":
        return "Serve's own proxy"
    return f"HAProxy, {front['max_connections']:,} connections at most"


def _virtual_time(status: Json) -> str | None:
    if "virtual_time" not in status:
        return None
    return f"{_amount(status['virtual_time'])}, as F: service for each unit of weight"


def _inferences(status: Json) -> str | None:
    if "waiting" not in status:
        return None
    kept_out = status.get("kept_out", 0)
    return (
        f"{status['waiting']:,} waiting"
        + (f" ({kept_out:,} for silent ingresses)" if kept_out else "")
        + f", {status['in_flight']:,} leased or running, {status['grants']:,} granted"
    )


def _prompts(status: Json) -> str | None:
    """Return the cached share of the prompts; None while no inference has ended."""
    tokens, cached = status.get("prompt_tokens"), status.get("cached_prompt_tokens", 0)
    return (
        f"{tokens:,} tokens of ended inferences, {cached / tokens:.0%} cached" if tokens else None
    )


def _next(status: Json) -> list[tuple[str, str | None]]:
    """Return the facts about the next inference to grant, and why it is the next."""
    head, held_back_s = status.get("head"), status.get("held_back_s")
    if head is None:
        held = held_back_s is not None
        return [("next", f"held back by the policy for {held_back_s:.1f} s" if held else None)]
    key = ", ".join(_amount(part) for part in head["key"])
    return [
        (
            "next",
            f"{_short(split_key(head['application_id'])[1], 32)} of tenant"
            f" {_short(head['tenant'], 12)}: F {_amount(head['virtual_finish_time'])},"
            f" least key ({key})",
        ),
        (
            "",
            f"{head['prompt_tokens']:,} prompt tokens, {head['predicted_output_tokens']:,} output"
            f" expected; has waited {head['waited_s']:.1f} s for {_WAITS_FOR[head['waits_for']]}",
        ),
    ]


def _predictor(predictor: Json | None) -> str | None:
    if predictor is None:
        return None
    if "error" in predictor:
        return f"cannot be asked: {predictor['error']}"
    classes = predictor.get("classes", {})
    modelled = sum(bool(known.get("serving")) for known in classes.values())
    more = f"; the first {_MOST_CLASSES} here" if len(classes) > _MOST_CLASSES else ""
    return f"{len(classes):,} classes, {modelled:,} with a model{more}"


def _replicas(status: Json) -> Sequence[Sequence[str]]:
    rows = [
        ["replica", "state", "KV used", "KV tokens", "use", "running", "leases", "seqs", "silent s"]
    ]
    for replica_id, replica in status.get("replicas", {}).items():
        there, used = replica["kv_tokens"], replica.get("used_kv_tokens")
        share = None if used is None or not there else used / there
        rows.append(
            [
                _short(replica_id, 24),
                replica.get("state", "draining" if replica["draining"] else "serving"),
                cell(used, ","),
                f"{there:,}",
                cell(share, ".0%"),
                cell(replica.get("running"), ","),
                cell(replica["leases"], ","),
                f"{cell(replica.get('sequences'), ',')}/{cell(replica.get('max_num_seqs'), ',')}",
                f"{replica['silent_s']:.1f}",
            ]
        )
    return rows


def _applications(status: Json) -> Sequence[Sequence[str]]:
    listed = status.get("first_applications", ())
    told = any("recognized_by" in application for application in listed)
    by = ["by"] if told else []
    return [
        ["application", "class", *by, "tenant", "F", "lag s", "bound s", "waits", "runs", "age s"],
        *(
            [
                _short(split_key(application["application_id"])[1], 24),
                _short(application["application_class"], 12),
                *(_short(application["recognized_by"] or "–", 16) for _ in by),
                _short(application["tenant"], 12),
                _amount(application["virtual_finish_time"]),
                cell((application["gps_lag"] or {}).get("seconds"), ",.1f"),
                cell((application["gps_lag"] or {}).get("bound_s"), ",.1f"),
                cell(application["waiting"], ","),
                cell(application["running"], ","),
                cell(application["age_s"], ",.1f"),
            ]
            for application in listed
        ),
    ]


def _classes(predictor: Json) -> Sequence[Sequence[str]]:
    classes = predictor.get("classes", {})
    most_known = sorted(classes, key=lambda name: (-classes[name]["samples"], name))
    return [
        ["class", "serves", "samples", "mean token·it", "versions", "newest"],
        *(
            [
                _short(name, 32),
                _serves(classes[name]),
                cell(classes[name]["samples"], ","),
                _amount(classes[name]["kv_token_time_mean"]),
                f"{len(classes[name]['versions']):,}",
                cell(max((v["version"] for v in classes[name]["versions"]), default=None), ","),
            ]
            for name in most_known[:_MOST_CLASSES]
        ),
    ]


def _serves(known: Json) -> str:
    version = known.get("serving", known["active"])
    pinned = ", pinned" if known["pinned"] else ""
    return f"version {version}{pinned}" if version else f"class mean{pinned}"


def _count(status: Json, key: str, unit: str) -> str | None:
    return f"{status[key]:,} {unit}".rstrip() if key in status else None


def _join(first: str | None, second: str | None, between: str) -> str | None:
    return first if first is None or second is None else f"{first}{between}{second}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _amount(value: float | None) -> str:
    """Return a number of token·iterations, or of another part of an order key."""
    return cell(value, ",.0f" if value is None or abs(value) < 1e12 else ".4g")


def add_to(commands: Any) -> None:
    """Add the subcommand to argparse's subparsers."""
    parser = commands.add_parser(
        "status",
        help="show the state of a running service",
        description=(
            "Show policy, queue, replicas, Redis, the first applications in order and the"
            " predictor's versions of a running service (GET /v1/status and /v1/predictor)."
        ),
    )
    add_connection(parser)
    parser.add_argument("--model", help="model to show, if several are served (default: all)")
    parser.add_argument(
        "--applications",
        type=int,
        default=10,
        metavar="N",
        help=f"live applications to show, at most {MAX_LISTED_APPLICATIONS:,} (default 10)",
    )
    parser.add_argument("--json", action="store_true", help="print the state as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Request the status and print it, once or until interrupted.

    Raises:
        ConfigError: If an option is wrong.
        ResponseError: If the service answered with an error.
        ConnectionError: If it did not answer.
    """
    check_applications(options.applications)
    show("status", lambda: _status(options), options.watch, in_place=not options.json)
    return 0


def _status(options: argparse.Namespace) -> str:
    seen = asyncio.run(_look(options))
    return json.dumps(seen, indent=2) if options.json else status_text(seen)


async def _look(options: argparse.Namespace) -> dict[str, Any]:
    """Return `{"ready": …, "models": {NAME: status of the model, with `predictor`}}`."""
    async with aclosing(connect(options)) as http:
        answers = await ask_each_model(
            http, "/v1/status", options.model, applications=options.applications
        )
    return {
        "ready": all(told.service.get("ready", False) for told in answers.values()),
        "models": {n: told.service | {"predictor": told.predictor} for n, told in answers.items()},
    }
