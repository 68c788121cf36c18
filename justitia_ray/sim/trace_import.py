"""A workload from a user's own trace: CSV (`trace_csv`) or OpenTelemetry spans (`genai_spans`).

What a trace does not say:

- CSV has no ends. Requests of one `application_id` are submitted as long after the first as they
  were then, whatever becomes of the others.
- Spans do not say what waited for what. An inference that began after others of its application had
  ended comes after those, and the gap is tool time. Only the last of them are named: who ended
  before another began is implied.
- Requests without output served nothing; they are left out and counted.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from justitia_ray.errors import ConfigError
from justitia_ray.sim.genai_spans import OPERATIONS, InferenceSpan, read_inference_spans
from justitia_ray.sim.suites.client_requests import APPLICATION_CLASS
from justitia_ray.sim.suites.options import SuiteOptions
from justitia_ray.sim.trace_csv import TraceRow, read_trace
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import Seconds
from justitia_ray.workloads.json_lines import numbered_lines

_TAKES = ("count", "window_s")


@dataclass(frozen=True, slots=True)
class ImportedTrace:
    """What a trace held; at least one application."""

    applications: list[WorkloadApplication]
    """In order of arrival; the first arrives at 0."""
    without_output: int
    """Requests that were left out."""


def import_trace(path: Path, options: SuiteOptions) -> ImportedTrace:
    """Return the applications of a trace.

    Args:
        path: CSV, or JSON lines of spans; the first character of the file tells which.
        options: `count` keeps the first so many applications; `window_s` scales arrivals, so that
            the last one arrives then, and leaves tool time.

    Raises:
        ConfigError: If the file is wrong, holds no request with output, or another option is set.
    """
    for option in options.given():
        if option not in _TAKES:
            raise ConfigError(f"a trace does not go by {option}; it does by {', '.join(_TAKES)}")
    if _is_json(path):
        spans = read_inference_spans(path)
        applications = _from_spans(span for span in spans if span.output_tokens > 0)
        without_output = sum(span.output_tokens == 0 for span in spans)
    else:
        rows = list(read_trace(path))
        applications = _from_rows(row for row in rows if row.output_tokens > 0)
        without_output = sum(row.output_tokens == 0 for row in rows)
    if not applications:
        raise ConfigError(
            f"{path}: must hold at least one request with output: a CSV row, or a span with"
            f" gen_ai.operation.name {', '.join(OPERATIONS)} and gen_ai.usage.*, holds none"
        )
    applications.sort(key=lambda application: application.arrived_at_s)
    return ImportedTrace(_placed(applications[: options.count], options.window_s), without_output)


def _is_json(path: Path) -> bool:
    texts = (line.lstrip() for _, line in numbered_lines(path))
    return next((text for text in texts if text), "").startswith("{")


def _placed(
    applications: Sequence[WorkloadApplication], window_s: Seconds | None
) -> list[WorkloadApplication]:
    """Let the first arrive at 0, and the last at the end of the window if there is one."""
    first_s, last_s = applications[0].arrived_at_s, applications[-1].arrived_at_s
    stretch = 1.0 if window_s is None or last_s == first_s else window_s / (last_s - first_s)
    return [
        replace(application, arrived_at_s=round((application.arrived_at_s - first_s) * stretch, 6))
        for application in applications
    ]


def _from_rows(rows: Iterable[TraceRow]) -> list[WorkloadApplication]:
    groups: dict[str, list[TraceRow]] = {}
    for number, row in enumerate(rows):
        own_id = f"request-{number}"
        groups.setdefault(row.application_id or own_id, []).append(row)
    return [_of_rows(name, group) for name, group in groups.items()]


def _of_rows(application_id: str, rows: Sequence[TraceRow]) -> WorkloadApplication:
    rows = sorted(rows, key=lambda row: row.arrival_s)
    first = rows[0]
    for row in rows:
        for name in ("client", "application_class"):
            if getattr(row, name) != getattr(first, name):
                raise ConfigError(
                    f"{row.where}: {name} must be the same for all of application"
                    f" {application_id!r}, {getattr(first, name)!r}, got {getattr(row, name)!r}"
                )
    return WorkloadApplication(
        application_id,
        first.application_class or APPLICATION_CLASS,
        first.arrival_s,
        tuple(
            WorkloadInference(
                str(number),
                row.input_tokens,
                row.output_tokens,
                delay_s=round(row.arrival_s - first.arrival_s, 6),
            )
            for number, row in enumerate(rows)
        ),
        tenant=first.client or "default",
    )


def _from_spans(spans: Iterable[InferenceSpan]) -> list[WorkloadApplication]:
    groups: dict[str, list[InferenceSpan]] = {}
    for span in spans:
        groups.setdefault(span.application_id, []).append(span)
    began_ns = min((span.start_ns for group in groups.values() for span in group), default=0)
    return [_of_spans(name, group, began_ns) for name, group in groups.items()]


def _of_spans(
    application_id: str, spans: Sequence[InferenceSpan], began_ns: int
) -> WorkloadApplication:
    spans = sorted(spans, key=lambda span: (span.start_ns, span.end_ns))
    by_end = sorted(range(len(spans)), key=lambda number: spans[number].end_ns)
    ends = [spans[number].end_ns for number in by_end]
    last_starts = list(accumulate((spans[number].start_ns for number in by_end), max))
    inferences = []
    for number, span in enumerate(spans):
        ended = bisect_right(ends, span.start_ns)
        if ended:
            # Who ended before the latest of these began was waited for by that one already.
            first = bisect_right(ends, last_starts[ended - 1])
            after, since_ns = sorted(by_end[first:ended]), ends[ended - 1]
        else:
            after, since_ns = [], spans[0].start_ns
        inferences.append(
            WorkloadInference(
                str(number),
                span.input_tokens,
                span.output_tokens,
                tuple(str(predecessor) for predecessor in after),
                round((span.start_ns - since_ns) / 1e9, 6),
            )
        )
    first_span = spans[0]
    return WorkloadApplication(
        application_id,
        first_span.application_class,
        (first_span.start_ns - began_ns) / 1e9,
        tuple(inferences),
        tenant=first_span.tenant,
    )
