"""`justitia status`: the service's status as readable text."""

import json
import time
from functools import partial
from typing import Any

import pytest

from justitia_ray.cli.main import main
from justitia_ray.cli.status import status_text
from tests.unit.cli.noting_service import Answer, Sent, recording_service

_WAITING: dict[str, Any] = {
    "application_id": "report-17",
    "application_class": "report",
    "tenant": "team-a",
    "virtual_finish_time": 48_000.0,
    "gps_lag": {"kv_token_time": 9, "seconds": 2.5, "bound_kv_token_time": 9, "bound_s": 30.0},
    "waiting": 3,
    "running": 1,
    "age_s": 12.0,
}
ANSWER: dict[str, Any] = {
    "model": "fake-7b",
    "ready": True,
    "degraded": None,
    "epoch": 3,
    "policy": "justitia",
    "settings": {"policy": "justitia", "admission": "peak"},
    "virtual_time": 41_234.5,
    "applications": 2,
    "waiting": 1_040,
    "in_flight": 7,
    "grants": 99,
    "backlog_kv_tokens": 5_000,
    "recovering": False,
    "held_back_s": None,
    "head": {
        "application_id": "report-17",
        "tenant": "team-a",
        "key": [48_000.0, 12],
        "virtual_finish_time": 48_000.0,
        "prompt_tokens": 1_200,
        "predicted_output_tokens": 256,
        "waited_s": 3.25,
        "waits_for": "room",
    },
    "first_applications": [_WAITING],
    "store": {
        "kind": "embedded",
        "durability": "batched",
        "connected": True,
        "trouble": None,
        "saved_s_ago": 0.26,
        "save_interval_s": 0.5,
        "unsaved_applications": 4,
    },
    "ingresses": 1,
    "front": {"kind": "haproxy", "max_connections": 7_897},
    "replicas": {
        "abc": {
            "kv_tokens": 7_344,
            "used_kv_tokens": 1_836,
            "leases": 7,
            "running": 6,
            "sequences": 9,
            "max_num_seqs": 256,
            "draining": True,
            "silent_s": 0.25,
        }
    },
    "kv": {"used_token_s": 50.0, "capacity_token_s": 200.0, "preemptions": 4},
    "version": "0.1.0",
}
PREDICTOR: dict[str, Any] = {
    "learns": True,
    "classes": {
        "report": {
            "samples": 120,
            "kv_token_time_mean": 54_321.0,
            "serving": 2,
            "active": 2,
            "pinned": True,
            "versions": [{"version": 1}, {"version": 2}, {"version": 3}],
        },
        "chat": {
            "samples": 4,
            "kv_token_time_mean": 100.0,
            "serving": 0,
            "active": 0,
            "pinned": False,
            "versions": [],
        },
    },
}


def answer_with_status(status: Any, predictor: Any, method: str, path: str, body: Any) -> Answer:
    """Answer as a service with this status and this predictor overview."""
    return 200, predictor if path.startswith("/v1/predictor") else status


well = partial(answer_with_status, ANSWER, PREDICTOR)


STARTING: Answer = (503, {"error": {"message": "the scheduler is being started again"}})


def render_status(status: dict[str, Any]) -> str:
    return status_text({"models": {status["model"]: status}})


def table_row(text: str, begin: str) -> list[str]:
    return next(line for line in text.splitlines() if line.startswith(begin)).split()


def test_status_text_shows_queue_replicas_and_serving_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with recording_service(well) as url:
        status = main(["status", "--url", url])
    text = capsys.readouterr().out
    lines = {line.split()[0]: line for line in text.splitlines() if line}

    assert 0 == status
    assert "justitia, admission peak" in lines["policy"]
    assert "1,040 waiting, 7 leased or running, 99 granted" in lines["inferences"]
    assert "25% on average" in lines["KV"]
    assert "HAProxy, 7,897 connections at most" in lines["front"]
    replica = ["abc", "draining", "1,836", "7,344", "25%", "6", "7", "9/256", "0.2"]
    assert replica == table_row(text, "abc")
    saved = "embedded, batched; saved 0.3 s ago, every 0.5 s; 4 applications to save"
    assert saved in lines["redis"]
    assert "predictor     2 classes, 1 with a model" in text
    assert ["report", "version", "2,", "pinned", "120", "54,321", "3", "3"] == table_row(
        text, "report "
    )
    assert ["chat", "class", "mean", "4", "100", "0", "–"] == table_row(text, "chat ")


def test_applications_are_listed_with_tags_and_lags() -> None:
    """An application without a lag shows a dash, which differs from a lag of zero."""
    fresh = _WAITING | {"application_id": "new", "gps_lag": None}
    text = render_status(ANSWER | {"first_applications": [_WAITING, fresh]})

    assert [
        "report-17",
        "report",
        "team-a",
        "48,000",
        "2.5",
        "30.0",
        "3",
        "1",
        "12.0",
    ] == table_row(text, "report-17")
    assert ["–", "–"] == table_row(text, "new")[4:6]


def test_recognition_rule_is_listed_beside_the_class() -> None:
    ruled = _WAITING | {"recognized_by": "metadata"}
    unruled = _WAITING | {"application_id": "new", "recognized_by": ""}
    text = render_status(ANSWER | {"first_applications": [ruled, unruled]})
    heads = [table_row(told, "application ")[:4] for told in (text, render_status(ANSWER))]

    assert [
        ["application", "class", "by", "tenant"],
        ["application", "class", "tenant", "F"],
    ] == heads
    assert ["report", "metadata", "team-a", "48,000"] == table_row(text, "report-17 ")[1:5]
    assert ["report", "–", "team-a", "48,000"] == table_row(text, "new ")[1:5]


def test_unavailable_predictor_hides_no_other_part_of_the_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    away = {"error": {"message": "the predictor gives no answer", "code": None}}
    with recording_service(
        lambda _, p, __: (503, away) if "predictor" in p else (200, ANSWER)
    ) as url:
        assert 0 == main(["status", "--url", url])
    text = capsys.readouterr().out

    assert "predictor     cannot be asked: 503: the predictor gives no answer" in text
    assert "1,040 waiting" in text


@pytest.mark.parametrize(
    ("prefill", "line"),
    [
        ({}, "12,000 tokens of ended inferences, 75% cached"),
        (
            {"prefill_token_time": 6_000.0, "forgiven_token_time": 500.0},
            "12,000 tokens of ended inferences, 75% cached, prefill 6,000 token·iterations, of"
            " evicted contexts 500",
        ),
    ],
)
def test_status_text_shows_the_cached_share_of_prompts(
    prefill: dict[str, float], line: str
) -> None:
    told = {"prompt_tokens": 12_000, "cached_prompt_tokens": 9_000}
    text = render_status({**ANSWER, **told, **prefill})

    assert f"prompts       {line}\n" in text
    assert "prompts" not in render_status(ANSWER)


def test_status_text_shows_the_working_set() -> None:
    seen = {
        "started": 8,
        "waiting": 24,
        "context_tokens": 41_000,
        "room_tokens": 90_000,
        "found": 90,
        "missed": 10,
    }
    contexts = "41,000 KV tokens beside what runs, of 90,000; 10 of 100 returns missed theirs"
    head = ANSWER["head"] | {"waits_for": "working_set"}
    text = render_status(ANSWER | {"working_set": seen, "head": head})

    assert "working set   8 applications started, 24 wait to start\n" in text
    assert f"contexts      {contexts}\n" in text
    assert "for room beside the contexts of started applications" in text
    assert "returns" not in render_status(
        ANSWER | {"working_set": seen | {"found": 0, "missed": 0}}
    )
    assert "working set" not in render_status(ANSWER)


def test_status_text_sums_held_contexts_and_host_memory_over_replicas() -> None:
    (replica,) = ANSWER["replicas"].values()
    held = {"held_contexts": 3, "held_kv_tokens": 41_000}
    host = {"host_kv_tokens": 20_000, "host_kv_capacity_tokens": 50_000}
    replicas = {
        "a": replica | {"kept": held},
        "b": replica | {"kept": held},
        "c": replica | {"kept": host},
        "d": replica,
    }
    text = render_status(ANSWER | {"replicas": replicas})

    assert "held          6 contexts, 82,000 KV tokens\n" in text
    assert "host memory   20,000 of 50,000 KV tokens\n" in text
    off = render_status(ANSWER)
    assert "\nheld " not in off
    assert "\nhost memory" not in off


def status_with_store(**changes: Any) -> dict[str, Any]:
    return {"store": ANSWER["store"] | changes}


def status_with_sizing(**size: Any) -> dict[str, Any]:
    return {"autoscaled": True, "why": "it is so", **size}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, "report-17 of tenant team-a: F 48,000, least key (48,000, 12)"),
        ({}, "1,200 prompt tokens, 256 output expected; has waited 3.2 s for room"),
        (
            {"engine_failures": {"crash": 2, "kill": 1}, "suspects": 3},
            "engines       2 died by themselves, 1 were killed; 3 suspects run apart\n",
        ),
        ({"kept_out": 14}, "inferences    1,040 waiting (14 for silent ingresses), 7 leased"),
        ({"head": None, "held_back_s": 20.0}, "next          held back by the policy for 20.0 s\n"),
        (
            status_with_store(connected=False),
            "redis         embedded, batched, not connected; saved 0.3 s ago",
        ),
        (
            status_with_store(kind="redis", durability="strict"),
            "redis         given, strict; saved",
        ),
        (
            status_with_store(saved_s_ago=None),
            "embedded, batched; nothing saved yet, every 0.5 s; 4 app",
        ),
        (
            status_with_store(unsaved_applications=1),
            "saved 0.3 s ago, every 0.5 s; 1 application to save\n",
        ),
        (
            status_with_store(kind="none", durability="none"),
            "redis         none: nothing is stored (durab",
        ),
        ({"degraded": "Redis is gone"}, "state         degraded: Redis is gone\n"),
        ({"recovering": True}, "state         recovering\n"),
        ({}, "state         ready\n"),
        ({"replicas": {}}, "state         not ready: no replica pulls; engines may be loading\n"),
        (
            {"replicas": {}, "size": status_with_sizing(wanted=0)},
            "state         ready: no replica is wanted, and the next call starts one\n",
        ),
        ({"size": status_with_sizing(wanted=5)}, ", and 5 wanted: it is so\n"),
        ({"size": status_with_sizing(wanted=5, autoscaled=False)}, "replicas      1\n"),
    ],
)
def test_status_line_reports_conditions_that_need_attention(
    change: dict[str, Any], told: str
) -> None:
    assert told in render_status(ANSWER | change)


def test_status_json_has_one_format_for_any_number_of_models(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Scripts read the field `models` in both cases.

    Its content is the service's status unchanged.
    """
    several = {"ready": True, "models": {"m": ANSWER | {"model": "m"}}}
    seen = []
    for status, predictor in ((ANSWER, PREDICTOR), (several, {"models": {"m": PREDICTOR}})):
        with recording_service(partial(answer_with_status, status, predictor)) as url:
            assert 0 == main(["status", "--json", "--url", url])
        seen.append(json.loads(capsys.readouterr().out))

    assert {"ready": True, "models": {"fake-7b": ANSWER | {"predictor": PREDICTOR}}} == seen[0]
    assert {"m": ANSWER | {"model": "m", "predictor": PREDICTOR}} == seen[1]["models"]


def test_status_request_carries_the_model_and_the_number_of_applications() -> None:
    asked: list[Sent] = []
    with recording_service(well, asked) as url:
        assert 0 == main(["status", "--url", url, "--applications", "250", "--model", "org/m&n"])

    assert [
        "/v1/status?applications=250&model=org%2Fm%26n",
        "/v1/predictor?model=org%2Fm%26n",
    ] == [path for _, path, _ in asked]


def test_error_of_the_service_is_printed_as_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with recording_service(STARTING) as url:
        assert 1 == main(["status", "--url", url])

    assert "justitia status: 503: the scheduler is being started again\n" == capsys.readouterr().err


def test_answer_of_another_program_is_reported_in_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with recording_service((200, ANSWER | {"replicas": {"abc": {"leases": "many"}}})) as url:
        assert 1 == main(["status", "--url", url])

    assert capsys.readouterr().err.startswith(
        "justitia status: 200: it is no status: replicas.abc.leases: Input should be"
    )


def test_watch_continues_after_a_restart_of_the_service(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch must run through a redeployment."""
    looks: list[Sent] = []
    slept = []

    def count_sleeps(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", count_sleeps)
    with recording_service(
        lambda *asked: STARTING if len(looks) == 1 else well(*asked), looks
    ) as url:
        status = main(["status", "--url", url, "--watch", "5"])
    said = capsys.readouterr()

    assert (130, [5.0, 5.0]) == (status, slept)
    assert "justitia status: 503: the scheduler is being started again\n" == said.err
    assert 1 == said.out.count("1,040 waiting")


def test_status_text_shows_several_models_in_sequence() -> None:
    away = {"model": "n", "ready": False, "degraded": "starting", "epoch": 0}
    text = status_text({"ready": False, "models": {"m": ANSWER, "n": away}})

    assert f"{render_status(ANSWER | {'model': 'm'})}\n\n{render_status(away)}" == text
    assert "not ready: starting" in text
    assert "waiting" not in render_status(away)
