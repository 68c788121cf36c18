"""Real texts on any machine: what the installed Python distribution says about itself.

Used when no data directory is given. The modules are read, never imported.
"""

import ast
import sysconfig
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from justitia_ray.errors import ConfigError

_TEXTS_PER_CLASS = 40
"""Enough for a demo; to read the whole distribution would take seconds."""
_DOCUMENT_CHARS = 5_000
"""Of a long document, at least. The measured ones had 12,000 and more: few modules say so much."""


def python_texts(application_class: str) -> list[str]:
    """Return up to 40 texts of the kind that a class takes.

    SC: questions with a number for an answer. KBQAV: a question and a response that states facts.
    MRS: long documents. The same for every run on one Python version.

    Raises:
        ConfigError: If the class is another, or the distribution comes without sources.
    """
    kinds: dict[str, Callable[[], Iterator[str]]] = {
        "SC": _questions,
        "KBQAV": _statements,
        "MRS": _documents,
    }
    if application_class not in kinds:
        raise ConfigError(
            f"application_class must be one of {', '.join(kinds)} without a data directory,"
            f" got {application_class!r}"
        )
    texts = list(islice(kinds[application_class](), _TEXTS_PER_CLASS))
    if not texts:
        raise ConfigError(f"{_sources()} holds no Python sources to read: give a data directory")
    return texts


def _questions() -> Iterator[str]:
    for module, function, text in _documented_functions():
        signature = f"{module}.{function.name}({ast.unparse(function.args)})"
        yield (
            f"A Python function is declared as {signature}. Its documentation says: {text}"
            " How many parameters does it declare in all?"
        )


def _statements() -> Iterator[str]:
    for module, function, text in _documented_functions():
        yield f"[question]\nWhat does {module}.{function.name} do?\n[response]\n{text}"


def _documents() -> Iterator[str]:
    """Yield all that a module says about itself: prose, where its code would be none."""
    for _, source in _modules():
        text = "\n\n".join(_docstrings(ast.parse(source)))
        if len(text) >= _DOCUMENT_CHARS:
            yield text


def _docstrings(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    if text := ast.get_docstring(node):
        yield text
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            yield from _docstrings(child)


def _documented_functions() -> Iterator[tuple[str, ast.FunctionDef, str]]:
    """Yield module, function and its documentation, as one line."""
    for module, source in _modules():
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                text = " ".join((ast.get_docstring(node) or "").split())
                if 100 <= len(text) <= 1000:  # the range of the recorded inputs, about
                    yield module, node, text


def _modules() -> Iterator[tuple[str, str]]:
    for path in sorted(_sources().glob("*.py")):
        yield path.stem, path.read_text(encoding="utf-8", errors="replace")


def _sources() -> Path:
    return Path(sysconfig.get_path("stdlib"))
