"""Import of a user's own trace as a workload: CSV and OpenTelemetry spans."""

import json
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.sim.suites import SuiteOptions
from justitia_ray.sim.trace_import import import_trace
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference, checked_application

HEADER = "arrival_s,input_tokens,output_tokens"


def import_csv(
    tmp_path: Path, *lines: str, **options: Any
) -> tuple[list[WorkloadApplication], int]:
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return import_trace(tmp_path / "t.csv", SuiteOptions(**options))


def import_json_lines(
    tmp_path: Path, *lines: Any, **options: Any
) -> tuple[list[WorkloadApplication], int]:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "t.jsonl").write_text(text, encoding="utf-8")
    return import_trace(tmp_path / "t.jsonl", SuiteOptions(**options))


def otlp_span(
    span_id: str, start_s: float, end_s: float, *, parent: str = "", **attributes: Any
) -> dict[str, Any]:
    """Return a span of trace `t` in OTLP format, where 64-bit integers are strings."""
    values = {
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 10,
        **{name.replace("__", "."): value for name, value in attributes.items()},
    }
    return {
        "traceId": "t",
        "spanId": span_id,
        "parentSpanId": parent,
        "startTimeUnixNano": str(round(start_s * 1e9)),
        "endTimeUnixNano": str(round(end_s * 1e9)),
        "attributes": [
            {
                "key": key,
                "value": {"intValue": str(value)} if type(value) is int else {"stringValue": value},
            }
            for key, value in values.items()
            if value is not None
        ],
    }


def otlp_export(*spans: dict[str, Any], service: str | None = None) -> dict[str, Any]:
    attributes = [{"key": "service.name", "value": {"stringValue": service}}] if service else []
    return {
        "resourceSpans": [
            {"resource": {"attributes": attributes}, "scopeSpans": [{"spans": list(spans)}]}
        ]
    }


def test_csv_rows_are_applications_of_their_clients(tmp_path: Path) -> None:
    """A CSV file of the data directory has one row per request."""
    applications, left_out = import_csv(
        tmp_path, HEADER + ",client", "101.5,13,199,7", "100.0,36,137,", "103,5,0,7"
    )

    assert applications == [
        WorkloadApplication("request-1", "request", 0.0, (WorkloadInference("0", 36, 137),)),
        WorkloadApplication(
            "request-0", "request", 1.5, (WorkloadInference("0", 13, 199),), tenant="7"
        ),
    ]
    assert 1 == left_out


def test_csv_rows_of_one_application_are_joined(tmp_path: Path) -> None:
    """Delays between submissions are kept, and columns may have any order."""
    applications, _ = import_csv(
        tmp_path,
        "application_class,output_tokens,application_id,input_tokens,arrival_s,note",
        "vote,1,x,10,5.0,",
        "vote,2,x,20,4.0,hm",
        "chat,3,y,30,4.5,",
    )

    assert applications == [
        WorkloadApplication(
            "x",
            "vote",
            0.0,
            (WorkloadInference("0", 20, 2), WorkloadInference("1", 10, 1, (), 1.0)),
        ),
        WorkloadApplication("y", "chat", 0.5, (WorkloadInference("0", 30, 3),)),
    ]


def test_count_option_cuts_a_trace_and_window_option_stretches_it(tmp_path: Path) -> None:
    """Arrivals of a trace can be made twice as dense."""
    rows = ["0,1,1,a", "2,1,1,a", "10,1,1,b", "20,1,1,c"]
    applications, _ = import_csv(tmp_path, HEADER + ",application_id", *rows, count=2, window_s=5)

    assert [0.0, 5.0] == [a.arrived_at_s for a in applications]
    assert [0.0, 2.0] == [i.delay_s for i in applications[0].inferences]


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (["a,b,c"], r"t\.csv:1: the header must name arrival_s, input_tokens, output_tokens"),
        ([HEADER + ",arrival_s"], "the header must name .*each once"),
        ([HEADER, "1,2"], r"t\.csv:2: must have 3 fields, got 2"),
        ([HEADER, "", "x,2,3"], r"t\.csv:3: arrival_s must be a number >= 0, got 'x'"),
        ([HEADER, "-1,2,3"], "arrival_s must be a number >= 0, got '-1'"),
        ([HEADER, "nan,2,3"], "arrival_s must be a number >= 0, got 'nan'"),
        ([HEADER, "1,0,3"], "input_tokens must be a whole number >= 1, got '0'"),
        ([HEADER, "1,2,3.5"], r"output_tokens must be a whole number >= 0, got '3\.5'"),
        ([HEADER, "1,2,-3"], "output_tokens must be a whole number >= 0, got '-3'"),
        ([HEADER, "1,2,٣"], "output_tokens must be a whole number >= 0"),
        ([HEADER], "must hold at least one request with output"),
        ([HEADER, "1,2,0"], "must hold at least one request with output"),
        ([""], r"t\.csv: must begin with a header, is empty"),
        (
            [HEADER + ",application_id,client", "1,2,3,x,me", "1,2,3,x,you"],
            r"t\.csv:3: client must be the same for all of application 'x', 'me', got 'you'",
        ),
    ],
)
def test_error_names_the_wrong_csv_row(tmp_path: Path, lines: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        import_csv(tmp_path, *lines)


def test_wrong_csv_quotes_and_options_are_refused(tmp_path: Path) -> None:
    """The csv module raises errors of its own."""
    with pytest.raises(ConfigError, match=r"t\.csv:2: is not CSV"):
        import_csv(tmp_path, HEADER, '1,2,"3"4')
    with pytest.raises(ConfigError, match="a trace does not go by arrivals"):
        import_csv(tmp_path, HEADER, "1,2,3", arrivals="uniform")


def test_byte_order_mark_is_not_part_of_the_csv_header(tmp_path: Path) -> None:
    """Excel writes a byte order mark."""
    assert 1 == len(import_csv(tmp_path, "\N{ZERO WIDTH NO-BREAK SPACE}" + HEADER, "1,2,3")[0])


def test_imported_span_depends_on_the_spans_that_ended_before_its_start(tmp_path: Path) -> None:
    applications, _ = import_json_lines(
        tmp_path,
        otlp_export(otlp_span("summary", 1003.5, 1004), otlp_span("right", 1001.5, 1002)),
        otlp_export(otlp_span("left", 1001.2, 1003), otlp_span("plan", 1000, 1001)),
    )

    [application] = applications
    assert ("t", 0.0) == (application.application_id, application.arrived_at_s)
    assert [(), ("0",), ("0",), ("1", "2")] == [i.after for i in application.inferences]
    assert [0.0, 0.2, 0.5, 0.5] == [i.delay_s for i in application.inferences]
    checked_application(application)


def test_indirect_predecessor_span_is_omitted(tmp_path: Path) -> None:
    [application] = import_json_lines(
        tmp_path,
        otlp_span("plan", 0, 1),
        otlp_span("long", 0, 3),
        otlp_span("step", 1, 2),
        otlp_span("summary", 3.5, 4),
    )[0]

    assert [(), (), ("0",), ("1", "2")] == [i.after for i in application.inferences]


def test_imported_spans_without_duration_form_a_chain(tmp_path: Path) -> None:
    """A coarse clock records spans of zero length."""
    [application] = import_json_lines(
        tmp_path,
        otlp_span("a", 1, 1),
        otlp_span("b", 1, 1),
        otlp_span("c", 2, 2),
        otlp_span("d", 3, 3),
    )[0]

    assert [(), (), ("0", "1"), ("2",)] == [i.after for i in application.inferences]


def test_application_class_and_tenant_come_from_span_attributes(tmp_path: Path) -> None:
    agent: dict[str, Any] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.usage.input_tokens": None,
    }
    applications, _ = import_json_lines(
        tmp_path,
        otlp_export(
            otlp_span("workflow", 0, 9, gen_ai__operation__name="invoke_workflow"),
            otlp_span(
                "top", 0, 9, parent="workflow", **agent, **{"gen_ai.agent.name": "researcher"}
            ),
            otlp_span("sub", 1, 8, parent="top", **agent, **{"gen_ai.agent.name": "searcher"}),
            otlp_span("x", 2, 3, parent="sub", gen_ai__conversation__id="c1", user__id="ann"),
            otlp_span("y", 4, 5),
            service="shop",
        ),
        otlp_span("z", 6, 7, gen_ai__conversation__id="c2"),
    )

    assert [("c1", "researcher", "ann"), ("t", "shop", "default"), ("c2", "trace", "default")] == [
        (a.application_id, a.application_class, a.tenant) for a in applications
    ]


def test_only_inference_spans_with_output_are_imported(tmp_path: Path) -> None:
    """An agent's span may carry the sum of its calls."""
    others = ("invoke_agent", "invoke_workflow", "embeddings", "execute_tool", None)
    applications, left_out = import_json_lines(
        tmp_path,
        *(otlp_span(str(n), 0, 9, gen_ai__operation__name=name) for n, name in enumerate(others)),
        otlp_span("chat", 1, 2),
        otlp_span("text", 3, 4, gen_ai__operation__name="text_completion"),
        otlp_span("content", 5, 6, gen_ai__operation__name="generate_content"),
    )

    assert [3] == [len(a.inferences) for a in applications]
    assert 0 == left_out
    applications, left_out = import_json_lines(
        tmp_path,
        otlp_span(
            "failed", 0, 1, gen_ai__usage__input_tokens=None, gen_ai__usage__output_tokens=None
        ),
        otlp_span("empty", 2, 3, gen_ai__usage__output_tokens=0),
        otlp_span("fine", 4, 5),
    )
    assert [1] == [len(a.inferences) for a in applications]
    assert 2 == left_out


def test_spans_exported_by_the_python_sdk_are_read(tmp_path: Path) -> None:
    """`ReadableSpan.to_json(indent=None)` has other names, ISO instants, and older token names."""
    lines = [
        {
            "name": "chat m",
            "context": {"trace_id": "0xabc", "span_id": f"0x{n}"},
            "parent_id": None,
            "start_time": f"2026-11-21T10:00:0{n}.500000Z",
            "end_time": f"2026-11-21T10:00:0{n}.750000Z",
            "attributes": {
                "gen_ai.operation.name": "chat",
                "gen_ai.usage.prompt_tokens": 20 + n,
                "gen_ai.usage.completion_tokens": 5,
            },
            "resource": {"attributes": {"service.name": "shop"}},
        }
        for n in (0, 2)
    ]

    assert import_json_lines(tmp_path, *lines)[0] == [
        WorkloadApplication(
            "0xabc",
            "shop",
            0.0,
            (WorkloadInference("0", 20, 5), WorkloadInference("1", 22, 5, ("0",), 1.75)),
        )
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (
            {**otlp_span("a", 0, 1), "startTimeUnixNano": "soon"},
            "startTimeUnixNano must be nanoseconds",
        ),
        ({**otlp_span("a", 0, 1), "endTimeUnixNano": None}, "endTimeUnixNano must be nanoseconds"),
        (otlp_span("a", 2, 1), "endTimeUnixNano must be at least the start, 2000000000"),
        (
            {**otlp_span("a", 0, 1), "traceId": ""},
            "traceId must be a text that is not blank, got ''",
        ),
        (
            otlp_span("a", 0, 1, gen_ai__usage__input_tokens="many"),
            "gen_ai.usage.input_tokens must be a whole number >= 1, got 'many'",
        ),
        (
            otlp_span("a", 0, 1, gen_ai__usage__output_tokens=-1),
            "gen_ai.usage.output_tokens must be a whole number >= 0, got -1",
        ),
        ({"resourceSpans": 1}, "resourceSpans must be a list of objects, got 1"),
        ({"resourceSpans": [{"scopeSpans": 1}]}, "scopeSpans must be a list of objects, got 1"),
        ({"resourceSpans": [{"scopeSpans": [{"spans": [1]}]}]}, "spans must be a list of objects"),
        ({"attributes": [1]}, "attributes must be a list of objects"),
    ],
)
def test_error_names_the_wrong_span(tmp_path: Path, line: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=rf"t\.jsonl:2: {complaint}"):
        import_json_lines(tmp_path, otlp_span("fine", 0, 1), line)


def test_import_of_a_cycle_of_parent_spans_ends(tmp_path: Path) -> None:
    """A broken exporter must not block the import."""
    a, b = otlp_span("a", 0, 1, parent="b"), otlp_span("b", 0, 1, parent="a")

    assert [2] == [len(x.inferences) for x in import_json_lines(tmp_path, a, b)[0]]


def test_file_without_inference_spans_is_no_workload(tmp_path: Path) -> None:
    """Metrics and logs are JSON lines, too."""
    with pytest.raises(ConfigError, match=r"at least one request.*gen_ai\.operation\.name chat"):
        import_json_lines(tmp_path, {"resourceMetrics": []})
