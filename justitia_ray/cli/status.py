"""`justitia status`: print the state of a running service, as tables or as JSON."""

import argparse
from typing import Any

from justitia_ray.application_key import split_key
from justitia_ray.cli.running_service import (
    Json,
    add_connection,
    check_applications,
    show_answer,
)
from justitia_ray.cli.text_table import Columns, column_table, format_cell, shortened
from justitia_ray.client.inspection import ask_each_model
from justitia_ray.client.transport import HttpTransport
from justitia_ray.protocol.inspection import MAX_LISTED_APPLICATIONS
from justitia_ray.protocol.status import (
    ApplicationView,
    FrontView,
    KeptKvView,
    ModelStatus,
    PrefillCostView,
    ReplicaView,
    StoreView,
    WorkingSetView,
    read_answer,
)

_MOST_CLASSES = 10
_WAITS_FOR = {
    "recovery": "replicas to report what runs",
    "replica": "a replica that takes work",
    "room": "room at a replica",
    "working_set": "room beside the contexts of started applications",
}


def status_text(seen: Json) -> str:
    """Return the document of `justitia status --json` as text, model by model."""
    return "\n\n".join(
        _model_text(name, read_answer(ModelStatus, answer, "status"), answer.get("predictor"))
        for name, answer in seen["models"].items()
    )


def _model_text(name: str, status: ModelStatus, predictor: Json | None) -> str:
    facts = [("model", name), *_model_facts(status, predictor)]
    tables = (
        column_table(_REPLICAS, status.replicas.items(), numbers_from="KV used"),
        column_table(_application_columns(status), status.first_applications, numbers_from="F"),
        column_table(_CLASSES, _most_sampled_classes(predictor or {}), numbers_from="samples"),
    )
    return "\n\n".join(
        [
            "\n".join(f"{name:<14}{value}" for name, value in facts if value is not None),
            *(table for table in tables if table),
        ]
    )


# --- facts


def _model_facts(status: ModelStatus, predictor: Json | None) -> list[tuple[str, str | None]]:
    is_started = status.policy is not None
    return [
        ("state", _state_text(status)),
        ("version", status.version),
        ("policy", _policy_text(status)),
        ("scheduler", None if status.epoch is None else f"epoch {status.epoch}"),
        *(_queue_facts(status) if is_started else ()),
        ("front", _front_text(status.front)),
        *(_engine_facts(status) if is_started else ()),
        ("predictor", _predictor_text(predictor)),
    ]


def _queue_facts(status: ModelStatus) -> list[tuple[str, str | None]]:
    return [
        ("V", f"{_format_amount(status.virtual_time)}, as F: service for each unit of weight"),
        ("redis", _store_text(status.store)),
        ("applications", f"{status.applications:,} open"),
        ("inferences", _inference_counts(status)),
        ("backlog", f"{status.backlog_kv_tokens:,} KV tokens"),
        ("prompts", _prompt_text(status)),
        *_working_set_facts(status.working_set),
        *_next_inference(status),
        ("ingresses", f"{status.ingresses:,}"),
    ]


def _engine_facts(status: ModelStatus) -> list[tuple[str, str | None]]:
    kv = status.kv
    used = kv.used_token_s / kv.capacity_token_s if kv.capacity_token_s else None
    return [
        ("replicas", _replica_count(status)),
        ("KV used", None if used is None else f"{used:.0%} on average since the start"),
        *_kept_context_facts(
            [one.kept for one in status.replicas.values() if one.kept is not None]
        ),
        ("preemptions", None if kv.preemptions is None else f"{kv.preemptions:,}"),
        ("engines", _dead_engines(status)),
        ("prefill cost", _prefill_cost(status.prefill_cost)),
    ]


def _state_text(status: ModelStatus) -> str:
    if not status.ready:
        return f"not ready: {status.degraded or 'not in office'}"
    if status.degraded is not None:
        return f"degraded: {status.degraded}"
    if status.policy is not None and not status.replicas:
        if status.size is not None and status.size["wanted"] == 0:
            return "ready: no replica is wanted, and the next call starts one"
        return "not ready: no replica pulls; engines may be loading"
    return "recovering" if status.recovering else "ready"


def _policy_text(status: ModelStatus) -> str | None:
    admission = status.settings.get("admission")
    if status.policy is None or admission is None:
        return status.policy
    return f"{status.policy}, admission {admission}"


def _replica_count(status: ModelStatus) -> str:
    """Return the number of replicas, and the number that autoscaling wants if it differs."""
    count, size = len(status.replicas), status.size
    if size is None or not size["autoscaled"] or size["wanted"] == count:
        return f"{count}"
    return f"{count}, and {size['wanted']} wanted: {size['why']}"


def _dead_engines(status: ModelStatus) -> str | None:
    """Return the number of engines that have died, as text; None for 0."""
    failures = status.engine_failures
    if not any(failures.values()):
        return None
    return (
        f"{failures.get('crash', 0):,} died by themselves, {failures.get('kill', 0):,} were killed"
        + (f"; {status.suspects:,} suspects run apart" if status.suspects else "")
    )


def _prefill_cost(cost: PrefillCostView | None) -> str | None:
    """Return what a computed prompt token costs, as text; None if prompts cost nothing."""
    if cost is None:
        return None
    if cost.per_token is None:
        return "not measured yet"
    text = f"{cost.per_token:.4g} token·iterations a computed token"
    if cost.per_pair:
        text += f", {cost.per_pair:.3g} a pair"
    release = f" under {cost.release}" if cost.release else ""
    return f"{text}, {cost.source}{release}"


def _store_text(store: StoreView | None) -> str | None:
    if store is None:
        return None
    if store.kind == "none":
        return "none: nothing is stored (durability none)"
    about = f"{'embedded' if store.kind == 'embedded' else 'given'}, {store.durability}"
    if not store.connected:
        about += ", not connected"
    ago, unsaved = store.saved_s_ago, store.unsaved_applications
    saved = "nothing saved yet" if ago is None else f"saved {ago:.1f} s ago"
    return (
        f"{about}; {saved}, every {store.save_interval_s:g} s;"
        f" {unsaved:,} {'application' if unsaved == 1 else 'applications'} to save"
    )


def _front_text(front: FrontView | None) -> str | None:
    if front is None:
        return None
    if front.kind == "serve":
        return "Serve's own proxy"
    return f"HAProxy, {front.max_connections:,} connections at most"


def _inference_counts(status: ModelStatus) -> str:
    return (
        f"{status.waiting:,} waiting"
        + (f" ({status.kept_out:,} for silent ingresses)" if status.kept_out else "")
        + f", {status.in_flight:,} leased or running, {status.grants:,} granted"
    )


def _prompt_text(status: ModelStatus) -> str | None:
    """Return the prompt tokens of ended inferences and the part from the prefix cache, as text."""
    tokens, cached = status.prompt_tokens, status.cached_prompt_tokens
    if not tokens:
        return None
    text = f"{tokens:,} tokens of ended inferences, {cached / tokens:.0%} cached"
    if not status.prefill_token_time:
        return text
    text += f", prefill {_format_amount(status.prefill_token_time)} token·iterations"
    return f"{text}, of evicted contexts {_format_amount(status.forgiven_token_time)}"


def _working_set_facts(view: WorkingSetView | None) -> list[tuple[str, str | None]]:
    """Return facts about applications that have started, and their contexts in KV memory."""
    if view is None:
        return []
    contexts = f"{view.context_tokens:,} KV tokens beside what runs, of {view.room_tokens:,}"
    returns = view.found + view.missed
    if returns:
        contexts += f"; {view.missed:,} of {returns:,} returns missed theirs"
    return [
        ("working set", f"{view.started:,} applications started, {view.waiting:,} wait to start"),
        ("contexts", contexts),
    ]


def _kept_context_facts(kept: list[KeptKvView]) -> list[tuple[str, str | None]]:
    """Return facts about contexts that replicas keep in GPU memory and host memory."""
    held = [one for one in kept if one.held_contexts is not None]
    host = [one for one in kept if one.host_kv_tokens is not None]
    facts: list[tuple[str, str | None]] = []
    if held:
        contexts = sum(one.held_contexts or 0 for one in held)
        tokens = sum(one.held_kv_tokens or 0 for one in held)
        facts.append(("held", f"{contexts:,} contexts, {tokens:,} KV tokens"))
    if host:
        used = sum(one.host_kv_tokens or 0 for one in host)
        capacity = sum(one.host_kv_capacity_tokens or 0 for one in host)
        facts.append(("host memory", f"{used:,} of {capacity:,} KV tokens"))
    return facts


def _next_inference(status: ModelStatus) -> list[tuple[str, str | None]]:
    """Return facts about the inference that will be granted next."""
    head, held_back_s = status.head, status.held_back_s
    if head is None:
        held = held_back_s is not None
        return [("next", f"held back by the policy for {held_back_s:.1f} s" if held else None)]
    key = ", ".join(map(_format_amount, head.key))
    return [
        (
            "next",
            f"{shortened(split_key(head.application_id)[1], 32)} of tenant"
            f" {shortened(head.tenant, 12)}: F {_format_amount(head.virtual_finish_time)},"
            f" least key ({key})",
        ),
        (
            "",
            f"{head.prompt_tokens:,} prompt tokens, {head.predicted_output_tokens:,} output"
            f" expected; has waited {head.waited_s:.1f} s for {_WAITS_FOR[head.waits_for]}",
        ),
    ]


def _predictor_text(predictor: Json | None) -> str | None:
    if predictor is None:
        return None
    if "error" in predictor:
        return f"cannot be asked: {predictor['error']}"
    classes = predictor.get("classes", {})
    modelled = sum(bool(known.get("serving")) for known in classes.values())
    more = f"; the first {_MOST_CLASSES} here" if len(classes) > _MOST_CLASSES else ""
    return f"{len(classes):,} classes, {modelled:,} with a model{more}"


# --- tables


def _used_kv_fraction(replica: ReplicaView) -> float | None:
    used, there = replica.used_kv_tokens, replica.kv_tokens
    return None if used is None or not there else used / there


_REPLICAS: Columns[tuple[str, ReplicaView]] = {
    "replica": lambda row: shortened(row[0], 24),
    "state": lambda row: row[1].state or ("draining" if row[1].draining else "serving"),
    "KV used": lambda row: format_cell(row[1].used_kv_tokens, ","),
    "KV tokens": lambda row: f"{row[1].kv_tokens:,}",
    "use": lambda row: format_cell(_used_kv_fraction(row[1]), ".0%"),
    "running": lambda row: format_cell(row[1].running, ","),
    "leases": lambda row: f"{row[1].leases:,}",
    "seqs": lambda row: (
        f"{format_cell(row[1].sequences, ',')}/{format_cell(row[1].max_num_seqs, ',')}"
    ),
    "silent s": lambda row: f"{row[1].silent_s:.1f}",
}

_APPLICATIONS: Columns[ApplicationView] = {
    "application": lambda one: shortened(split_key(one.application_id)[1], 24),
    "class": lambda one: shortened(one.application_class, 12),
    "by": lambda one: shortened(one.recognized_by or "–", 16),
    "tenant": lambda one: shortened(one.tenant, 12),
    "F": lambda one: _format_amount(one.virtual_finish_time),
    "lag s": lambda one: format_cell(one.gps_lag and one.gps_lag.seconds, ",.1f"),
    "bound s": lambda one: format_cell(one.gps_lag and one.gps_lag.bound_s, ",.1f"),
    "waits": lambda one: f"{one.waiting:,}",
    "runs": lambda one: f"{one.running:,}",
    "age s": lambda one: format_cell(one.age_s, ",.1f"),
}

_CLASSES: Columns[tuple[str, Json]] = {
    "class": lambda row: shortened(row[0], 32),
    "serves": lambda row: _serving_version(row[1]),
    "samples": lambda row: format_cell(row[1]["samples"], ","),
    "mean token·it": lambda row: _format_amount(row[1]["kv_token_time_mean"]),
    "versions": lambda row: f"{len(row[1]['versions']):,}",
    "newest": lambda row: format_cell(
        max((v["version"] for v in row[1]["versions"]), default=None), ","
    ),
}


def _application_columns(status: ModelStatus) -> Columns[ApplicationView]:
    """Return the columns of the table of applications; older services lack `recognized_by`."""
    if any(one.recognized_by is not None for one in status.first_applications):
        return _APPLICATIONS
    return {head: text for head, text in _APPLICATIONS.items() if head != "by"}


def _most_sampled_classes(predictor: Json) -> list[tuple[str, Json]]:
    classes = predictor.get("classes", {}).items()
    return sorted(classes, key=lambda row: (-row[1]["samples"], row[0]))[:_MOST_CLASSES]


def _serving_version(known: Json) -> str:
    version = known.get("serving", known["active"])
    pinned = ", pinned" if known["pinned"] else ""
    return f"version {version}{pinned}" if version else f"class mean{pinned}"


def _format_amount(value: float | None) -> str:
    """Format token·iterations, or another number by which a policy orders applications."""
    return format_cell(value, ",.0f" if value is None or abs(value) < 1e12 else ".4g")


def add_subcommand(commands: Any) -> None:
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
    check_applications(options.applications)
    return show_answer("status", options, _request_status, status_text)


async def _request_status(http: HttpTransport, options: argparse.Namespace) -> Json:
    """Return `{"ready": …, "models": {NAME: status of the model and of its predictor}}`."""
    answers = await ask_each_model(
        http, "/v1/status", options.model, applications=options.applications
    )
    return {
        "ready": all(told.service.get("ready", False) for told in answers.values()),
        "models": {n: told.service | {"predictor": told.predictor} for n, told in answers.items()},
    }
