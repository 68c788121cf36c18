"""The report of scripts/bench_serve: pairs, verdicts, table, JSON."""

import json

import pytest

from justitia_ray.bench.load import Sample
from justitia_ray.bench.serve_measures import (
    CHUNKS,
    CONCURRENT,
    IDLE_STREAM,
    IDLE_UNARY,
    METRICS,
    SATURATED_STREAM,
    SATURATED_UNARY,
    Arms,
    Block,
    Measured,
)
from justitia_ray.bench.serve_report import (
    cpu_table,
    document,
    metrics_rows,
    metrics_verdict,
    rows,
    table,
    verdicts,
)

ARMS = Arms("ours", "theirs", "ours", "unjoined")


def block(ttft_s: float, tokens_per_s: float, chunks: int = 4) -> Block:
    samples = tuple(Sample(ttft_s, 2 * ttft_s, 1.0 + k, 10, chunks) for k in range(4))
    cpu_ms = {"proxy": 2.0, "ingress": 3.0, "client": 100.0}
    return Block(samples, tokens_per_s, cpu_ms)


def measured(ours: list[float], theirs: list[float], ratio: float) -> Measured:
    """One block for each first-token time; ours makes `ratio` times the tokens of theirs."""
    found = Measured()
    for a, b in zip(ours, theirs, strict=True):
        for measure in (IDLE_STREAM, IDLE_UNARY, CONCURRENT, SATURATED_UNARY, SATURATED_STREAM):
            found.add(measure, "ours", block(a, 1000 * ratio))
            found.add(measure, "theirs", block(b, 1000))
        found.add(CHUNKS, "ours", block(a, 1000, chunks=2))
        found.add(CHUNKS, "unjoined", block(a, 500, chunks=8))
    return found


def test_added_time_is_the_median_of_the_pairs() -> None:
    """10 to 13, 100 to 104 and 20 to 50 ms: pairs add 3, 4 and 30; medians alone would add 30."""
    found = rows(measured([0.013, 0.104, 0.050], [0.010, 0.100, 0.020], 1.0), ARMS)

    added = next(r for r in found if (r.measure, r.figure) == (IDLE_STREAM, "first token p50, ms"))

    assert (4.0, 3.0, 30.0) == pytest.approx(
        (added.compared.median, added.compared.low, added.compared.high)
    )


def test_cpu_of_the_client_is_not_the_service() -> None:
    """The load generator shares the cores, and is the same for both arms."""
    assert 5.0 == block(0.01, 1.0).cpu_ms_per_call


def test_joining_chunks_is_compared_with_its_own_arm() -> None:
    """2 chunks against 8 and 1,000 tokens/s against 500."""
    found = {(r.measure, r.figure): r for r in rows(measured([0.01], [0.01], 1.0), ARMS)}

    assert 0.25 == found[CHUNKS, "chunks a call"].compared.median
    assert 2.0 == found[CHUNKS, "tokens/s"].compared.median


@pytest.mark.parametrize(
    ("engine", "added_s", "ratio", "met"),
    [
        ("fake", 0.0049, 0.97, [True, True, True]),
        ("fake", 0.0051, 0.97, [False, False, True]),
        ("fake", 0.0, 0.96, [True, True, False]),
        ("vllm", 0.0, 0.90, [True, True, True]),
        ("vllm", 0.0, 0.89, [True, True, False]),
    ],
)
def test_verdicts_follow_the_targets(
    engine: str, added_s: float, ratio: float, met: list[bool]
) -> None:
    """The targets of the design: 5 ms; 0.97 of the throughput on fake engines, 0.90 on vLLM."""
    judged = verdicts(engine, rows(measured([0.01 + added_s], [0.01], ratio), ARMS))

    assert met == [verdict.met for verdict in judged]
    assert all(str(verdict).startswith("MET" if verdict.met else "MISSED") for verdict in judged)


def test_report_names_every_measure_and_survives_json() -> None:
    """A figure that is measured and not shown would be lost."""
    taken = measured([0.01], [0.01], 1.0)
    found = rows(taken, ARMS)
    judged = verdicts("fake", found)

    text = table(found) + cpu_table(taken)
    written = json.loads(json.dumps(document(taken, found, judged)))

    assert all(measure in text for measure in taken.blocks)
    assert set(taken.blocks) == set(written["blocks"])
    assert [10.0] * 4 == written["blocks"][IDLE_STREAM]["ours"][0]["ttft_ms"]


@pytest.mark.parametrize(("with_metrics_ms", "met"), [((5.1, 5.2, 5.0), True), ((5.3,) * 3, False)])
def test_metrics_are_held_to_three_percent_of_the_cpu(
    with_metrics_ms: tuple[float, ...], met: bool
) -> None:
    """5.1 of 5.0 ms is 2 %, in the median of the pairs; 5.3 is 6 %."""
    found = Measured()
    for ms in with_metrics_ms:
        for arm, cpu_ms in (("on", ms), ("off", 5.0)):
            found.add(METRICS, arm, Block(block(0.01, 1000).samples, 1000, {"scheduler": cpu_ms}))
    compared = metrics_rows(found, ("on", "off"))

    assert met == metrics_verdict(compared).met
    assert f"{METRICS}, on" in cpu_table(found)
