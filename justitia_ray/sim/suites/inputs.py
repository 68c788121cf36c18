"""Input texts of applications: from a data directory, or from the Python installation.

Without a data directory, the docstrings of the installed Python standard library serve as real
texts. Its modules are read, never imported.
"""

import ast
import functools
import os
import random
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, overload

from justitia_ray.errors import ConfigError
from justitia_ray.json_lines import read_records


@overload
def data_directory(given: Path | None, *, required: Literal[True]) -> Path: ...
@overload
def data_directory(given: Path | None, *, required: bool) -> Path | None: ...


def data_directory(given: Path | None, *, required: bool) -> Path | None:
    """Return the data directory; None if there is none and `required` is False.

    Args:
        given: Value of `--data`; takes precedence over the environment variable.
        required: Whether the command needs one.

    Raises:
        ConfigError: If the named path is not a directory, or if none is named and one is required.
    """
    in_environment = os.environ.get("JUSTITIA_DATA")
    if given is not None:
        found, source = given, "--data"
    elif in_environment:
        found, source = Path(in_environment), "JUSTITIA_DATA"
    elif required:
        raise ConfigError("--data must name the data directory, or JUSTITIA_DATA; neither is set")
    else:
        return None
    if not found.is_dir():
        raise ConfigError(f"{source} must be a directory, got {str(found)!r}")
    return found


_TEXTS_PER_CLASS = 40
"""Number of input texts per class, enough for a demo."""
_DOCUMENTS = 4
"""Number of documents to merge, as in the measured runs."""
_FUNCTIONS = 200
"""Number of Python functions to read; they give 40 texts for each class that uses functions."""
_FUNCTION_CHARS = 2_000
"""Maximum length of the code of a function to check, in characters; measured texts have up to
2,089.
"""
_DOCUMENT_CHARS = 5_000
"""Minimum length of a long document, in characters. Measured documents have at least 12,000, which
few Python modules reach.
"""


@functools.cache
def python_texts(application_class: str) -> tuple[str, ...]:
    """Return up to 40 texts from Python's library that are suitable as inputs of a class.

    SC: questions with a number as the answer. KBQAV: a question and a response that states facts.
    FV: claims. MRS: long documents. DM: four shorter documents. CC: a task and a function for it.
    CG: the start of a module. EV: a problem and a solution. PE: requests. The texts depend only on
    the Python version.

    Raises:
        ConfigError: If the class has no such texts, or the installation has no sources.
    """
    kinds: dict[str, Callable[[], Iterator[str]]] = {
        "SC": _code_questions,
        "KBQAV": _code_statements,
        "MRS": _module_documents,
        "PE": _requests,
        "CC": _function_tasks,
        "EV": _module_solutions,
        "FV": _documentation_claims,
        "DM": _document_sets,
        "CG": _function_beginnings,
    }
    if application_class not in kinds:
        raise ConfigError(
            f"application_class must be one of {', '.join(kinds)} without a data directory,"
            f" got {application_class!r}"
        )
    texts = tuple(islice(kinds[application_class](), _TEXTS_PER_CLASS))
    if not texts:
        raise ConfigError(
            f"{_library_sources()} holds no Python sources to read: give a data directory"
        )
    return texts


def _code_questions() -> Iterator[str]:
    for module, function, text in _documented_functions():
        signature = f"{module}.{function.name}({ast.unparse(function.args)})"
        yield (
            f"A Python function is declared as {signature}. Its documentation says: {text}"
            " How many parameters does it declare in all?"
        )


def _code_statements() -> Iterator[str]:
    for module, function, text in _documented_functions():
        yield f"[question]\nWhat does {module}.{function.name} do?\n[response]\n{text}"


def _module_documents() -> Iterator[str]:
    """Yield the docstrings of each Python module as one text."""
    for _, source in _library_modules():
        text = "\n\n".join(_docstrings(ast.parse(source)))
        if len(text) >= _DOCUMENT_CHARS:
            yield text


def _requests() -> Iterator[str]:
    for module, function, text in _documented_functions():
        yield (
            f"Summarise what the documentation says about {module}.{function.name}, translate the"
            f" summary into French, and paint a picture for it. The documentation says: '{text}'"
        )


def _function_tasks() -> Iterator[str]:
    for _, function, _ in _documented_functions():
        code = ast.unparse(function)
        if len(code) <= _FUNCTION_CHARS:
            yield (
                f"[question]\n{_without_body(function)}\n[entry point]\n{function.name}\n"
                f"[code]\n{code}"
            )


def _function_beginnings() -> Iterator[str]:
    for _, function, _ in _documented_functions():
        yield _without_body(function)


def _without_body(function: ast.FunctionDef) -> str:
    """Return a function's declaration and docstring."""
    text = (ast.get_docstring(function) or "").replace("\n", "\n    ")
    documentation = f"    {text!r}" if '"""' in text else f'    """{text}"""'
    return f"def {function.name}({ast.unparse(function.args)}):\n{documentation}\n"


def _module_solutions() -> Iterator[str]:
    for module, source in _library_modules():
        body = ast.parse(source).body
        functions = sum(isinstance(node, ast.FunctionDef) for node in body)
        classes = sum(isinstance(node, ast.ClassDef) for node in body)
        lines = source.count("\n")
        if functions and classes:
            both = functions + classes
            yield (
                f"[math problem]\nThe module {module} has {lines} lines, on which it defines"
                f" {functions} functions and {classes} classes. How many lines are there to a"
                f" definition?\n[potential solution]\nThere are {functions} + {classes} ="
                f" {both} definitions. {lines} / {both} = {lines / both:.2f} lines to each."
            )


def _documentation_claims() -> Iterator[str]:
    for module, function, text in _documented_functions():
        yield f"Claim: {module}.{function.name} is documented so: {text.partition('. ')[0]}"


def _document_sets() -> Iterator[str]:
    """Yield the docstrings of four functions of one module, as four documents."""
    of_module: dict[str, list[str]] = {}
    for module, function, text in _documented_functions():
        texts = of_module.setdefault(module, [])
        texts.append(f"{module}.{function.name}: {text}")
        if len(texts) == _DOCUMENTS:
            yield "\n\n".join(
                f"<Doc{number}>\n{one}\n</Doc{number}>" for number, one in enumerate(texts, 1)
            )
            texts.clear()


def _docstrings(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    if text := ast.get_docstring(node):
        yield text
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            yield from _docstrings(child)


@functools.cache
def _documented_functions() -> tuple[tuple[str, ast.FunctionDef, str], ...]:
    """Return module, function and one-line docstring of the first 200 functions."""
    return tuple(islice(_parse_library_functions(), _FUNCTIONS))


def _parse_library_functions() -> Iterator[tuple[str, ast.FunctionDef, str]]:
    for module, source in _library_modules():
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                text = " ".join((ast.get_docstring(node) or "").split())
                if 100 <= len(text) <= 1000:
                    yield module, node, text


def _library_modules() -> Iterator[tuple[str, str]]:
    for path in sorted(_library_sources().glob("*.py")):
        yield path.stem, path.read_text(encoding="utf-8", errors="replace")


def _library_sources() -> Path:
    return Path(sysconfig.get_path("stdlib"))


_ROOMS = (
    ("bed", "desk", "desk", "drawer", "drawer", "drawer", "shelf", "shelf", "safe", "garbagecan"),
    ("cabinet", "cabinet", "countertop", "diningtable", "drawer", "fridge", "microwave", "shelf"),
    ("cabinet", "countertop", "garbagecan", "handtowelholder", "shelf", "sinkbasin", "toilet"),
)
_LEAST_RECEPTACLES = 5
_TASKS = (
    ("look at {thing} under the desklamp", ("bowl", "box", "laptop", "pillow"), ("",)),
    ("put some {thing} on {place}", ("peppershaker", "mug", "plate"), ("shelf", "diningtable")),
    ("clean some {thing} and put it in {place}", ("soapbar", "pan", "ladle"), ("cabinet", "shelf")),
    ("heat some {thing} and put it in {place}", ("egg", "potato", "cup"), ("garbagecan", "fridge")),
    ("cool some {thing} and put it in {place}", ("tomato", "lettuce", "pot"), ("diningtable",)),
    (
        "find two {thing} and put them in {place}",
        ("creditcard", "pen", "watch"),
        ("safe", "drawer"),
    ),
)
_GAMES = 40
"""Number of household games, as many as other classes have texts."""


@dataclass(frozen=True, slots=True)
class Input:
    """Text that a user submits."""

    item_id: str
    text: str


def load_inputs(data_dir: Path | None, application_class: str) -> list[Input]:
    """Return the inputs of an application class: at least one, and always in the same order.

    Args:
        data_dir: Directory with `apps/CLASS.jsonl`. None: real texts from the Python installation
            (`python_texts`), and openings of household games from `household_game`.
        application_class: The class.

    Raises:
        ConfigError: If the file is missing, empty or wrong (the message names file, line and
            field), or there is no directory and `python_texts` does not support the class.
    """
    if data_dir is None:
        texts = (
            [household_game(seed) for seed in range(_GAMES)]
            if application_class == "ALFWI"
            else python_texts(application_class)
        )
        return [
            Input(f"{application_class}-{number:03d}", text) for number, text in enumerate(texts)
        ]
    path = data_dir / "apps" / f"{application_class}.jsonl"
    inputs = [Input(record.text("id"), record.text("input")) for record in read_records(path)]
    if not inputs:
        raise ConfigError(f"{path}: must hold at least one input, is empty")
    return inputs


def household_game(seed: int) -> str:
    """Return the opening text of a household game; equal seeds give equal texts."""
    rng = random.Random(f"opening/{seed}")
    room = rng.choice(_ROOMS)
    kinds = rng.sample(room, rng.randrange(_LEAST_RECEPTACLES, len(room) + 1))
    names = [f"{kind} {kinds[: i + 1].count(kind)}" for i, kind in enumerate(kinds)]
    task, things, places = rng.choice(_TASKS)
    wanted = task.format(thing=rng.choice(things), place=rng.choice(places))
    seen = ", ".join(f"a {name}" for name in names)
    return (
        f"You are in the middle of a room. Looking quickly around you, you see {seen}.\n\n"
        f"Your task is to: {wanted}."
    )
