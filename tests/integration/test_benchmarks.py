"""Every benchmark without a cluster runs once, with all its arms, on a plan of seconds.

Benchmarks are run by hand, months apart, while the code that they use changes.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from justitia_ray.lab.s3.config import TINY
from justitia_ray.predictor.input_features import features_of
from justitia_ray.predictor.observation import Sample
from scripts import (
    bench_core,
    bench_memory,
    bench_predictor,
    bench_recognition,
    bench_s3,
    bench_scheduler,
    bench_store,
)
from scripts.bench import predictor
from scripts.bench.core import Plan
from scripts.bench.memory import Case
from scripts.bench.recognition import MIXES

Main = Callable[[Sequence[str]], int]


def run_benchmark(main: Main, tmp_path: Path, *arguments: str) -> dict[str, object]:
    file = tmp_path / "found.json"
    assert 0 == main([*arguments, "--json", str(file)])
    found: dict[str, object] = json.loads(file.read_text(encoding="utf-8"))
    return found


def sample_lines(_: Path, application_class: str) -> list[Sample]:
    texts = [f"{application_class} {'word ' * (3 + n % 7)}" for n in range(24)]
    return [Sample(1e4 + 1e3 * len(text), 2, 40, features_of(text), text) for text in texts]


def test_bench_core_times_policies_and_the_linear_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = Plan((5, 10), 1, steps=1, completions=1, warm_up_steps=1, memory_applications=5)
    monkeypatch.setattr(bench_core, "default_plan", lambda *_, **__: tiny)
    monkeypatch.setattr(bench_core, "MEMORY_OF_OTHERS", 5)
    found = run_benchmark(bench_core.main, tmp_path, "--policy", "justitia", "--policy", "vtc")

    assert {"cells", "memory", "verdicts", "garbage_collections"} <= set(found)


def test_bench_core_times_a_tree_of_tenants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--leaves` adds tenants at depth four, with fair sharing at each level."""
    tiny = Plan((20,), 1, steps=1, completions=1, warm_up_steps=1, memory_applications=5)
    monkeypatch.setattr(bench_core, "default_plan", lambda *_, **__: tiny)
    tree = ("--leaves", "16", "--option", "fairness=tenant", "--option", "order=finish")
    found = run_benchmark(bench_core.main, tmp_path, "--policy", "justitia-guarded", *tree)

    assert found["leaves"] == 16
    cells = cast(list[dict[str, Any]], found["cells"])
    assert any(cell["policy"] == "justitia-guarded" for cell in cells)


def test_bench_core_times_replicas_with_a_prefix_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = Plan((20,), 1, steps=1, completions=1, warm_up_steps=1, memory_applications=5)
    monkeypatch.setattr(bench_core, "default_plan", lambda *_, **__: tiny)
    found = run_benchmark(bench_core.main, tmp_path, "--policy", "justitia", "--beginnings", "4")

    assert found["beginnings"] == 4


def test_bench_scheduler_counts_the_calls_served_by_one_scheduler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--ingresses", "1", "--replicas", "2", "--callers", "16", "--standing", "10")
    short = ("--repeats", "1", "--window", "0.5", "--warm-up", "0.2", "--durability", "none")
    found = run_benchmark(
        bench_scheduler.main, tmp_path, *few, *short, "--profile", str(tmp_path / "prof")
    )

    (reading,) = cast(list[dict[str, Any]], found["readings"])
    (window,) = reading["windows"]
    assert window["inferences_per_s"] > 0
    assert window["cpu_ms"] > 0
    assert window["live_applications"] >= 10
    assert "ceiling/s" in capsys.readouterr().out
    assert (tmp_path / "prof").exists()


@pytest.mark.redis
def test_bench_store_measures_both_durability_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run_benchmark(
        bench_store.main, tmp_path, "--repeats", "1", "--calls", "2", "--live", "2"
    )

    assert {"repeats", "machine", "options"} <= set(found)
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("batched", "strict"))


@pytest.mark.long
@pytest.mark.redis
def test_bench_memory_measures_scheduler_and_ingress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_memory, "SCHEDULER", (Case(3, 2),))
    monkeypatch.setattr(bench_memory, "INGRESS", (Case(3, 0),))
    found = run_benchmark(bench_memory.main, tmp_path)

    assert {"about", "scheduler", "ingress"} <= set(found)


@pytest.mark.long
def test_bench_predictor_measures_every_kind_of_predictor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (bench_predictor, predictor):
        monkeypatch.setattr(module, "SEVEN", ("KBQAV", "CC"))
    monkeypatch.setattr(predictor, "BATCH", 2)
    monkeypatch.setattr(predictor, "CURVE", (5,))
    monkeypatch.setattr(predictor, "_PHASE", 22)
    monkeypatch.setattr(bench_predictor, "DRIFTS", (("KBQAV", "CC"),))
    monkeypatch.setattr(bench_predictor, "data_directory", lambda *_, **__: tmp_path)
    monkeypatch.setattr(bench_predictor, "load_samples", sample_lines)
    found = run_benchmark(bench_predictor.main, tmp_path, "--quick")

    assert {"trials", "latency", "curve", "drift", "verdicts"} <= set(found)
    found = run_benchmark(bench_predictor.main, tmp_path, "--quick", "--spread")

    assert "trials" in found
    assert "curve" not in found
    (tmp_path / "recorded").mkdir()
    for name in ("KBQAV", "CC", "CG"):
        call = {"stages": [{"name": "only", "calls": [[100, 10]]}], "class": name, "item_id": None}
        rows = f"{json.dumps(call)}\n" * 5
        (tmp_path / "recorded" / f"{name}.jsonl").write_text(rows, encoding="utf-8")
    found = run_benchmark(bench_predictor.main, tmp_path, "--stages", "--sets", "1")

    assert ["KBQAV", "CC", "CG"] == [
        one["application_class"] for one in cast(list[dict[str, Any]], found["stages"])
    ]


@pytest.mark.long
def test_bench_s3_measures_a_model_of_the_papers_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test's model is tiny; that of the papers has 66 M parameters."""
    monkeypatch.setattr(bench_s3, "S3Config", partial(replace, TINY))
    found = run_benchmark(bench_s3.main, tmp_path, "--quick")

    assert "full_size" in found


def test_bench_recognition_simulates_every_way_of_recognition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_recognition, "QUICK_COUNT", 10)
    found = run_benchmark(bench_recognition.main, tmp_path, "--quick", "--only", "simulated")

    loads = cast(list[dict[str, Any]], found["simulated"])
    assert list(MIXES) == [load["mix"] for load in loads]
    assert all(len(load["times"]) == 5 for load in loads)
    assert found["live"] is None
    assert "by conversation" in capsys.readouterr().out
