"""Write the documentation tables that are derived from the code, each between its two markers.

    <!-- table: NAME -->
    <!-- end of table -->

The texts stand below each key in `justitia_ray.config`, in the rows of the metrics, of the span
attributes and of the doctor's rules, and in the Helm chart's values. The generated files of the
chart are written, too.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from justitia_ray.cli.main import command_parser
from justitia_ray.config import AppArgs, AppSettings
from justitia_ray.doctor.front_rules import FRONT_RULES
from justitia_ray.doctor.rollout_rules import ROLLOUT_RULES
from justitia_ray.doctor.scaling_rules import SCALING_RULES
from justitia_ray.doctor.service_rules import SERVICE_RULES
from justitia_ray.doctor.store_rules import PAIR_RULES, REDIS_RULES, STORE_RULES
from justitia_ray.observability.metrics import EXPORTED_PREFIX
from justitia_ray.observability.metrics import TABLE as METRICS
from justitia_ray.observability.span_conventions import TABLE as SPAN_ATTRIBUTES
from scripts.chart_values import CHART, files, parameters_table

ROOT = Path(__file__).parents[1]
SETTINGS_PAGE = ROOT / "deployments" / "README.md"
METRICS_PAGE = ROOT / "deployments" / "monitoring" / "README.md"
SPANS_PAGE = ROOT / "deployments" / "observability.md"
RULES_PAGE = ROOT / "deployments" / "troubleshooting.md"
CHART_PAGE = CHART / "README.md"

_FIRST = ("name", "log_encoding", "model", "models")
"""Keys of `args` that the settings table lists first."""


def settings_table(schema: type[BaseModel]) -> str:
    """Return a table with a row for every setting, including those of subsections."""
    rows = [f"| `{key}` | {default} | {text} |" for key, default, text in _setting_rows(schema)]
    head = "| key | default | meaning, and the reason of the default |\n|---|---|---|"
    return "\n".join([head, *rows])


def metrics_table() -> str:
    """Return a table with a row for every metric."""
    lines = ["| metric | kind | labels | set by | what |", "|---|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.own_labels) or "–"
        name, what = f"`{EXPORTED_PREFIX}{metric.name}`", metric.description.replace("|", "\\|")
        lines.append(f"| {name} | {metric.kind} | {labels} | {metric.set_by} | {what} |")
    return "\n".join(lines)


def rules_table() -> str:
    """Return a table with a row for every rule of the doctor."""
    rules = [
        (rule.name, rule.severity, rule.holds)
        for table in (
            SERVICE_RULES,
            ROLLOUT_RULES,
            SCALING_RULES,
            FRONT_RULES,
            STORE_RULES,
            REDIS_RULES,
            PAIR_RULES,
        )
        for rule in table
    ]
    rows = [f"| `{name}` | {severity} | {holds} |" for name, severity, holds in rules]
    return "\n".join(["| rule | a breach is | in a healthy service |", "|---|---|---|", *rows])


def spans_table() -> str:
    """Return a table with a row for every attribute of spans."""
    rows = [
        f"| `{row.name}` | {', '.join(f'`{span}`' for span in row.spans)} | {row.description} |"
        for row in SPAN_ATTRIBUTES
    ]
    return "\n".join(["| attribute | of | what |", "|---|---|---|", *rows])


def commands_table() -> str:
    """Return a table with a row for every subcommand of `justitia`."""
    subcommands = next(
        action
        for action in command_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    rows = [f"| `justitia {row.dest}` | {row.help} |" for row in subcommands._choices_actions]
    return "\n".join(["| command | what it does; `--help` has its options |\n|---|---|", *rows])


TABLES: dict[str, tuple[Path, Callable[[], str]]] = {
    "args": (SETTINGS_PAGE, lambda: settings_table(AppArgs)),
    "user_config": (SETTINGS_PAGE, lambda: settings_table(AppSettings)),
    "metrics": (METRICS_PAGE, metrics_table),
    "rules": (RULES_PAGE, rules_table),
    "spans": (SPANS_PAGE, spans_table),
    "commands": (SETTINGS_PAGE, commands_table),
    "values": (CHART_PAGE, parameters_table),
}
"""(page, text) of each generated table, by the name in the page's marker comments."""


def with_tables(text: str, page: Path) -> str:
    """Return a page's text with its tables regenerated from the code.

    Raises:
        ValueError: If a table has not exactly one place on its page.
    """
    for name, (its_page, make) in TABLES.items():
        if its_page != page:
            continue
        start, end = f"<!-- table: {name} -->\n", "\n<!-- end of table -->"
        place = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
        table = start + make() + end
        text, places = place.subn(table.replace("\\", r"\\"), text)
        if places != 1:
            raise ValueError(f"{page}: {places} places for the table {name}; one is needed")
    return text


def _setting_rows(schema: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (key, default, description) of every setting, including those of subsections."""
    names = list(schema.model_fields)
    if schema is AppArgs:
        names = [*_FIRST, *(name for name in names if name not in _FIRST)]
    for name in names:
        field = schema.model_fields[name]
        section = _section_of(field.annotation)
        if section is not None:
            yield from _setting_rows(section, f"{prefix}{name}.")
            continue
        default = (
            "required"
            if field.is_required()
            else _default_as_yaml(field.get_default(call_default_factory=True))
        )
        yield f"{prefix}{name}", default, " ".join((field.description or "").split())


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section type of a settings key; None if the key holds a value."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return None if get_args(annotation)[1:] == (...,) else kind
    return None


def _default_as_yaml(default: object) -> str:
    """Return a setting's default as written in YAML."""
    if default is None:
        return "`null`"
    return f"`{list(default) if isinstance(default, tuple) else default}`"


def generated_texts() -> dict[Path, str]:
    """Return the text that each page with tables, and each generated file, should have."""
    pages = sorted({page for page, _ in TABLES.values()})
    texts = {page: with_tables(page.read_text(encoding="utf-8"), page) for page in pages}
    return texts | files()


def main() -> int:
    """Write every generated page and file, or with `--check` return 1 if one is outdated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit status 1 if a file is old"
    )
    check = parser.parse_args().check
    status = 0
    for file, text in generated_texts().items():
        if file.is_file() and file.read_text(encoding="utf-8") == text:
            continue
        if check:
            print(f"{file.relative_to(ROOT)}: it is old; run scripts/write_tables")
            status = 1
        else:
            file.write_text(text, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
