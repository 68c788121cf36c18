"""A user's own history: JSON lines, one finished application a line.

    {"class": "report", "input": "…", "inferences": [{"prompt_tokens": 812, "output_tokens": 64}]}

All fields must be there and no others, and each count be at least 1; blank lines are passed over.
What an application cost follows from its inferences.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from justitia_ray.errors import RequestError
from justitia_ray.predictor.class_mean import check_class_name
from justitia_ray.predictor.observation import Observation
from justitia_ray.predictor.sample import Sample
from justitia_ray.units import Tokens
from justitia_ray.workloads.json_lines import Record, read_records

_FIELDS = {"class", "input", "inferences"}
_COUNTS = ("prompt_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class PastApplication:
    """One line."""

    application_class: str
    input: str
    calls: tuple[tuple[Tokens, Tokens], ...]
    """Prompt and output tokens of each inference."""

    def observation(self) -> Observation:
        """Return what is learned from it; the text stays behind."""
        sample = Sample.of_calls(self.calls, self.input).without_text()
        return Observation(self.application_class, sample)


def read_history(path: Path) -> Iterator[PastApplication]:
    """Yield the applications of a file as it is read; a `.gz` file is unpacked.

    Raises:
        ConfigError: If the file cannot be read or a line is wrong; file, line and field are named.
    """
    for record in read_records(path):
        yield _application(record)


def _application(record: Record) -> PastApplication:
    if wrong := sorted(_FIELDS ^ set(record.fields)):
        name = wrong[0]
        allowed = "there" if name in _FIELDS else "one of " + ", ".join(sorted(_FIELDS))
        raise record.error(f"field {name!r}", allowed, record.value(name))
    name, inferences = record.value("class"), record.value("inferences")
    try:
        check_class_name(name if isinstance(name, str) else "")
    except RequestError:
        raise record.error("class", "1 to 64 of A-Z a-z 0-9 . _ -", name) from None
    text = record.text("input")
    if not isinstance(inferences, list) or not inferences:
        raise record.error("inferences", "a list with at least one inference", inferences)
    calls = tuple(_call(record, f"inferences[{i}]", call) for i, call in enumerate(inferences))
    return PastApplication(name, text, calls)


def _call(record: Record, where: str, call: Any) -> tuple[Tokens, Tokens]:
    if not isinstance(call, dict) or set(call) != set(_COUNTS):
        raise record.error(where, "an object of prompt_tokens and output_tokens", call)
    for name in _COUNTS:
        if type(call[name]) is not int or call[name] < 1:
            raise record.error(f"{where}.{name}", "an integer >= 1", call[name])
    return call["prompt_tokens"], call["output_tokens"]
