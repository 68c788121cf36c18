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


def of_csv(tmp_path: Path, *lines: str, **options: Any) -> tuple[list[WorkloadApplication], int]:
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return import_trace(tmp_path / "t.csv", SuiteOptions(**options))


def of_lines(tmp_path: Path, *lines: Any, **options: Any) -> tuple[list[WorkloadApplication], int]:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "t.jsonl").write_text(text, encoding="utf-8")
    return import_trace(tmp_path / "t.jsonl", SuiteOptions(**options))


def span(
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


def otlp(*spans: dict[str, Any], service: str | None = None) -> dict[str, Any]:
    attributes = [{"key": "service.name", "value": {"stringValue": service}}] if service else []
    return {
        "resourceSpans": [
            {"resource": {"attributes": attributes}, "scopeSpans": [{"spans": list(spans)}]}
        ]
    }


def test_rows_are_applications_of_their_clients(tmp_path: Path) -> None:
    """A CSV of the data directory has a row per request; the first arrives at 0."""
    applications, left_out = of_csv(
        tmp_path, HEADER + ",client", "101.5,13,199,7", "100.0,36,137,", "103,5,0,7"
    )

    assert applications == [
        WorkloadApplication("request-1", "request", 0.0, (WorkloadInference("0", 36, 137),)),
        WorkloadApplication(
            "request-0", "request", 1.5, (WorkloadInference("0", 13, 199),), tenant="7"
        ),
    ]
    assert 1 == left_out


def test_rows_of_one_application_are_put_together(tmp_path: Path) -> None:
    """The delays between their submissions are kept; columns may have any order."""
    applications, _ = of_csv(
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


def test_count_and_window_cut_and_stretch(tmp_path: Path) -> None:
    """Arrivals of a trace can be made twice as dense; tool time is unchanged."""
    rows = ["0,1,1,a", "2,1,1,a", "10,1,1,b", "20,1,1,c"]
    applications, _ = of_csv(tmp_path, HEADER + ",application_id", *rows, count=2, window_s=5)

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
def test_wrong_csv_is_named(tmp_path: Path, lines: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        of_csv(tmp_path, *lines)


def test_wrong_quotes_and_options_are_named(tmp_path: Path) -> None:
    """The csv module raises errors of its own, and a trace has its own arrivals."""
    with pytest.raises(ConfigError, match=r"t\.csv:2: is not CSV"):
        of_csv(tmp_path, HEADER, '1,2,"3"4')
    with pytest.raises(ConfigError, match="a trace does not go by arrivals"):
        of_csv(tmp_path, HEADER, "1,2,3", arrivals="uniform")


def test_spreadsheet_s_byte_order_mark_is_no_part_of_the_header(tmp_path: Path) -> None:
    """Excel writes a byte order mark."""
    assert 1 == len(of_csv(tmp_path, "\N{ZERO WIDTH NO-BREAK SPACE}" + HEADER, "1,2,3")[0])


def test_span_depends_on_the_spans_that_ended_before_it(tmp_path: Path) -> None:
    """A plan, two parallel steps, and a summary 0.5 s after the later step.

        plan     0 ── 1
        left          1.2 ──── 3
        right           1.5 ─ 2
        summary                3.5 ─ 4

    The plan is no predecessor of the summary, because the steps waited for it.
    """
    applications, _ = of_lines(
        tmp_path,
        otlp(span("summary", 1003.5, 1004), span("right", 1001.5, 1002)),
        otlp(span("left", 1001.2, 1003), span("plan", 1000, 1001)),
    )

    [application] = applications
    assert ("t", 0.0) == (application.application_id, application.arrived_at_s)
    assert [(), ("0",), ("0",), ("1", "2")] == [i.after for i in application.inferences]
    assert [0.0, 0.2, 0.5, 0.5] == [i.delay_s for i in application.inferences]
    checked_application(application)


def test_predecessor_that_another_predecessor_waited_for_is_omitted(tmp_path: Path) -> None:
    """`long` ends last but starts first, so that only `step` waited for the plan.

        plan     0 ── 1
        long     0 ─────────── 3
        step           1 ─ 2
        summary                3.5 ─ 4

    A span that starts exactly when another ends counts as after it.
    """
    [application] = of_lines(
        tmp_path,
        span("plan", 0, 1),
        span("long", 0, 3),
        span("step", 1, 2),
        span("summary", 3.5, 4),
    )[0]

    assert [(), (), ("0",), ("1", "2")] == [i.after for i in application.inferences]


def test_spans_of_no_length_are_a_chain(tmp_path: Path) -> None:
    """A coarse clock records spans of zero length; two at the same time run in parallel."""
    [application] = of_lines(
        tmp_path, span("a", 1, 1), span("b", 1, 1), span("c", 2, 2), span("d", 3, 3)
    )[0]

    assert [(), (), ("0", "1"), ("2",)] == [i.after for i in application.inferences]


def test_conversation_agent_service_and_user_say_whose_it_is(tmp_path: Path) -> None:
    """Application: conversation, else trace. Class: the outermost agent, else the service."""
    agent: dict[str, Any] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.usage.input_tokens": None,
    }
    applications, _ = of_lines(
        tmp_path,
        otlp(
            span("workflow", 0, 9, gen_ai__operation__name="invoke_workflow"),
            span("top", 0, 9, parent="workflow", **agent, **{"gen_ai.agent.name": "researcher"}),
            span("sub", 1, 8, parent="top", **agent, **{"gen_ai.agent.name": "searcher"}),
            span("x", 2, 3, parent="sub", gen_ai__conversation__id="c1", user__id="ann"),
            span("y", 4, 5),
            service="shop",
        ),
        span("z", 6, 7, gen_ai__conversation__id="c2"),
    )

    assert [("c1", "researcher", "ann"), ("t", "shop", "default"), ("c2", "trace", "default")] == [
        (a.application_id, a.application_class, a.tenant) for a in applications
    ]


def test_only_inferences_with_output_count(tmp_path: Path) -> None:
    """An agent's span may carry the sum of its calls; embeddings and tools are not inferences."""
    others = ("invoke_agent", "invoke_workflow", "embeddings", "execute_tool", None)
    applications, left_out = of_lines(
        tmp_path,
        *(span(str(n), 0, 9, gen_ai__operation__name=name) for n, name in enumerate(others)),
        span("chat", 1, 2),
        span("text", 3, 4, gen_ai__operation__name="text_completion"),
        span("content", 5, 6, gen_ai__operation__name="generate_content"),
    )

    assert [3] == [len(a.inferences) for a in applications]
    assert 0 == left_out
    applications, left_out = of_lines(
        tmp_path,
        span("failed", 0, 1, gen_ai__usage__input_tokens=None, gen_ai__usage__output_tokens=None),
        span("empty", 2, 3, gen_ai__usage__output_tokens=0),
        span("fine", 4, 5),
    )
    assert [1] == [len(a.inferences) for a in applications]
    assert 2 == left_out


def test_spans_of_the_python_sdk_are_read(tmp_path: Path) -> None:
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

    assert of_lines(tmp_path, *lines)[0] == [
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
        ({**span("a", 0, 1), "startTimeUnixNano": "soon"}, "startTimeUnixNano must be nanoseconds"),
        ({**span("a", 0, 1), "endTimeUnixNano": None}, "endTimeUnixNano must be nanoseconds"),
        (span("a", 2, 1), "endTimeUnixNano must be at least the start, 2000000000"),
        ({**span("a", 0, 1), "traceId": ""}, "traceId must be a text that is not blank, got ''"),
        (
            span("a", 0, 1, gen_ai__usage__input_tokens="many"),
            "gen_ai.usage.input_tokens must be a whole number >= 1, got 'many'",
        ),
        (
            span("a", 0, 1, gen_ai__usage__output_tokens=-1),
            "gen_ai.usage.output_tokens must be a whole number >= 0, got -1",
        ),
        ({"resourceSpans": 1}, "resourceSpans must be a list of objects, got 1"),
        ({"resourceSpans": [{"scopeSpans": 1}]}, "scopeSpans must be a list of objects, got 1"),
        ({"resourceSpans": [{"scopeSpans": [{"spans": [1]}]}]}, "spans must be a list of objects"),
        ({"attributes": [1]}, "attributes must be a list of objects"),
    ],
)
def test_wrong_span_is_named(tmp_path: Path, line: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=rf"t\.jsonl:2: {complaint}"):
        of_lines(tmp_path, span("fine", 0, 1), line)


def test_parents_in_a_circle_end(tmp_path: Path) -> None:
    """A broken exporter must not block the import."""
    a, b = span("a", 0, 1, parent="b"), span("b", 0, 1, parent="a")

    assert [2] == [len(x.inferences) for x in of_lines(tmp_path, a, b)[0]]


def test_lines_that_hold_no_inference_are_not_a_workload(tmp_path: Path) -> None:
    """Metrics and logs are JSON lines too."""
    with pytest.raises(ConfigError, match=r"at least one request.*gen_ai\.operation\.name chat"):
        of_lines(tmp_path, {"resourceMetrics": []})
