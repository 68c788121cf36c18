"""Find docstrings whose first words show that they cannot be read alone."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

BANNED = re.compile(
    r"(What|Which|One|Of|Take|So|Likewise|There (is|are)|The same|The rest|It|Its|They|Their|Them|"
    r"These|Those|As above)\b"
)
"""First words that a docstring must not begin with, such as pronouns without a noun."""
ROOTS = ("justitia_ray", "scripts", "tests/harness", "deployments")


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of every docstring, including those after an assignment."""
    for node in ast.walk(ast.parse(source)):
        for before, statement in _statement_pairs(node):
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
                and (before is None or isinstance(before, ast.Assign | ast.AnnAssign))
            ):
                yield statement.lineno, statement.value.value


def _statement_pairs(node: ast.AST) -> Iterator[tuple[ast.stmt | None, ast.stmt]]:
    """Yield each statement of a body with the statement before it."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield from zip([None, *node.body], node.body, strict=False)


def main() -> int:
    found = [
        f"{path}:{line}: {text.strip().splitlines()[0]}"
        for root in ROOTS
        for path in sorted(Path(root).rglob("*.py"))
        for line, text in docstrings(path.read_text(encoding="utf-8"))
        if BANNED.match(text.strip())
    ]
    print("\n".join([*found, f"{len(found)} docstrings open with a riddle"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
