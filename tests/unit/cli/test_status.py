"""`justitia status`: the service's own words, readable."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from justitia_ray.cli.main import main
from justitia_ray.cli.status_table import readable
from tests.unit.cli.noting_service import Answer, noting_service

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


def well(method: str, path: str, body: Any) -> Answer:
    """Answer as a service that is well."""
    return 200, PREDICTOR if path.startswith("/v1/predictor") else ANSWER


def of(status: dict[str, Any]) -> str:
    """Return the text for one model in this state."""
    return readable({"models": {status["model"]: status}})


def row(text: str, begin: str) -> list[str]:
    """Return the cells of the first line that begins so."""
    return next(line for line in text.splitlines() if line.startswith(begin)).split()


def test_answer_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    """An operator sees at a glance what waits, and on which replicas it runs."""
    with noting_service(well) as url:
        status = main(["status", "--url", url])
    text = capsys.readouterr().out
    lines = {line.split()[0]: line for line in text.splitlines() if line}

    assert 0 == status
    assert "justitia, admission peak" in lines["policy"]
    assert "1,040 waiting, 7 leased or running, 99 granted" in lines["inferences"]
    assert "25% on average" in lines["KV"]
    replica = ["abc", "draining", "1,836", "7,344", "25%", "6", "7", "9/256", "0.2"]
    assert replica == row(text, "abc")
    saved = "embedded, batched; saved 0.3 s ago, every 0.5 s; 4 applications to save"
    assert saved in lines["redis"]


def test_who_is_next_and_why_is_told() -> None:
    """The question of whoever waits: which one goes first, by which number, and what holds it."""
    text = of(ANSWER)

    assert "report-17 of tenant team-a: F 48,000, least key (48,000, 12)" in text
    assert "1,200 prompt tokens, 256 output expected; has waited 3.2 s for room" in text
    assert "held back by the policy for 20.0 s" in of(ANSWER | {"head": None, "held_back_s": 20.0})


def test_applications_stand_with_their_tags_and_lags() -> None:
    """One that has no lag yet has none to show, which is not a lag of zero."""
    fresh = _WAITING | {"application_id": "new", "gps_lag": None}
    text = of(ANSWER | {"first_applications": [_WAITING, fresh]})

    assert ["report-17", "report", "team-a", "48,000", "2.5", "30.0", "3", "1", "12.0"] == row(
        text, "report-17"
    )
    assert ["–", "–"] == row(text, "new")[4:6]


def test_predictor_versions_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Which model answers for a class: its newest may be one that did not win."""
    with noting_service(well) as url:
        main(["status", "--url", url])
    text = capsys.readouterr().out

    assert "predictor     2 classes, 1 with a model" in text
    assert ["report", "version", "2,", "pinned", "120", "54,321", "3", "3"] == row(text, "report ")
    assert ["chat", "class", "mean", "4", "100", "0", "–"] == row(text, "chat ")


def test_predictor_that_is_away_hides_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    """The queue goes on without it, and so does this command."""

    def answer(method: str, path: str, body: Any) -> Answer:
        if path.startswith("/v1/predictor"):
            return 503, {"error": {"message": "the predictor gives no answer", "code": None}}
        return 200, ANSWER

    with noting_service(answer) as url:
        status = main(["status", "--url", url])
    text = capsys.readouterr().out

    assert 0 == status
    assert "predictor     cannot be asked: 503: the predictor gives no answer" in text
    assert "1,040 waiting" in text


def test_longest_names_fit_a_terminal() -> None:
    """Ids of 128 characters and large numbers would wrap and be read in the wrong column."""
    long = "x" * 128
    huge = _WAITING | {
        "application_id": long,
        "application_class": long,
        "tenant": long,
        "virtual_finish_time": 3.25e15,
        "gps_lag": {"seconds": 86_400.0, "bound_s": 864_000.0},
        "waiting": 200_000,
        "age_s": 86_400.0,
    }
    head = ANSWER["head"] | {
        "application_id": long,
        "tenant": long,
        "virtual_finish_time": 3.25e15,
        "key": [3.25e15, 9_999_999],
        "waits_for": "recovery",
    }
    known = {long: PREDICTOR["classes"]["report"]}
    text = of(
        ANSWER
        | {"first_applications": [huge], "head": head, "predictor": PREDICTOR | {"classes": known}}
        | {"replicas": {long: ANSWER["replicas"]["abc"]}}
    )

    assert 120 > max(map(len, text.splitlines()))


def test_what_is_kept_out_is_told_apart() -> None:
    """It waits for nothing that an operator could add: its ingress has to call, or is dead."""
    assert "1,040 waiting (14 for silent ingresses), 7 leased" in of(ANSWER | {"kept_out": 14})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"connected": False}, "embedded, batched, not connected; saved 0.3 s ago"),
        ({"kind": "redis", "durability": "strict"}, "given, strict; saved"),
        (
            {"saved_s_ago": None, "unsaved_applications": 1},
            "embedded, batched; nothing saved yet, every 0.5 s; 1 app",
        ),
        ({"kind": "none", "durability": "none"}, "none: nothing is stored (durability none)"),
    ],
)
def test_store_says_what_could_be_lost(change: dict[str, Any], told: str) -> None:
    """How far Redis is behind is what a machine that dies now takes with it."""
    assert f"redis         {told}" in of(ANSWER | {"store": ANSWER["store"] | change})


def test_json_is_one_document_for_one_model_and_for_several(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A script reads `models`, whatever is served; inside is what the service said, unchanged."""
    several = {"ready": True, "models": {"m": ANSWER | {"model": "m"}}}
    seen = []
    for status, predictor in ((ANSWER, PREDICTOR), (several, {"models": {"m": PREDICTOR}})):
        answers = {"status": status, "predictor": predictor}

        def answer(method: str, path: str, body: Any, answers: Any = answers) -> Answer:
            return 200, answers[path.removeprefix("/v1/").split("?")[0]]

        with noting_service(answer) as url:
            assert 0 == main(["status", "--json", "--url", url])
        seen.append(json.loads(capsys.readouterr().out))

    assert {"ready": True, "models": {"fake-7b": ANSWER | {"predictor": PREDICTOR}}} == seen[0]
    assert {"m": ANSWER | {"model": "m", "predictor": PREDICTOR}} == seen[1]["models"]


def test_number_of_applications_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """The scheduler looks at no more than will be shown."""
    asked = []

    def answer(method: str, path: str, body: Any) -> Answer:
        asked.append(path)
        return well(method, path, body)

    with noting_service(answer) as url:
        assert 0 == main(["status", "--url", url, "--applications", "250"])
        assert 2 == main(["status", "--url", url, "--applications", "1001"])

    assert ["/v1/status?applications=250", "/v1/predictor"] == asked
    assert (
        "--applications is 1001: an integer from 0 to 1,000 is allowed" in capsys.readouterr().err
    )


def test_watch_looks_again_and_outlives_a_restart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left open while the service is deployed anew: an error is told, and it looks again."""
    looks, slept = [], []

    def answer(method: str, path: str, body: Any) -> Answer:
        looks.append(path)
        if len(looks) == 1:
            return 503, {"error": {"message": "the scheduler is being started again", "code": None}}
        return well(method, path, body)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    with noting_service(answer) as url:
        status = main(["status", "--url", url, "--watch", "5"])
    said = capsys.readouterr()

    assert (130, [5.0, 5.0]) == (status, slept)
    assert "justitia status: 503: the scheduler is being started again\n" == said.err
    assert 1 == said.out.count("1,040 waiting")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_watch_takes_a_time_above_zero(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Anything else would ask without a pause, or never again."""
    assert 2 == main(["status", f"--watch={seconds}"])
    assert "a number of seconds above 0 is allowed" in capsys.readouterr().err


def test_scheduler_that_starts_is_shown_as_not_ready() -> None:
    """It says nothing of itself but that; the command must not fail on what is left out."""
    text = of({"model": "m", "ready": False, "degraded": "starting", "epoch": 0})

    assert "not ready: starting" in text
    assert "waiting" not in text


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"degraded": "Redis at unix: gone"}, "degraded: Redis at unix: gone"),
        ({"recovering": True}, "recovering"),
        ({}, "ready"),
        ({"replicas": {}}, "not ready: no replica pulls; engines may be loading"),
    ],
)
def test_state_says_what_is_wrong(change: dict[str, Any], state: str) -> None:
    """The reason of a degraded service is the thing to know of it."""
    assert f"state         {state}" in of(ANSWER | change).splitlines()


def saying(status: int, body: dict[str, Any]) -> Callable[[str, str, Any], Answer]:
    """Return what answers every request so."""
    return lambda method, path, sent: (status, body)


def test_error_of_the_service_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1: the service did not do what was asked."""
    error = {"error": {"message": "the scheduler is being started again", "code": None}}
    with noting_service(saying(503, error)) as url:
        status = main(["status", "--url", url])

    assert 1 == status
    assert "justitia status: 503: the scheduler is being started again\n" == capsys.readouterr().err


def test_nobody_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """The commonest mistake, a wrong port, gives no traceback."""
    with noting_service(saying(200, {})) as url:
        pass  # its port is free again
    status = main(["status", "--url", url])
    said = capsys.readouterr().err

    assert 1 == status
    assert said.startswith("justitia status: no connection to 127.0.0.1")
    assert 1 == len(said.splitlines())


def test_url_without_a_scheme_is_the_user_s_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2, and the message says what an URL looks like."""
    assert 2 == main(["status", "--url", "localhost:8000"])
    assert "must start with http:// or https://" in capsys.readouterr().err


def test_several_models_are_shown_one_after_the_other() -> None:
    """Each has a queue, a policy and replicas of its own; one that is away says why."""
    away = {"model": "n", "ready": False, "degraded": "no answer within 5 s"}
    text = readable({"ready": False, "models": {"m": ANSWER, "n": away}})

    assert f"{of(ANSWER | {'model': 'm'})}\n\n{of(away)}" == text
    assert "not ready: no answer within 5 s" in text


def test_one_of_several_models_can_be_asked_for() -> None:
    """Its name may hold what a URL gives another meaning."""
    asked = []

    def answer(method: str, path: str, body: Any) -> Answer:
        asked.append(path)
        return well(method, path, body)

    with noting_service(answer) as url:
        assert 0 == main(["status", "--url", url, "--model", "org/m&n"])

    assert [
        "/v1/status?applications=10&model=org%2Fm%26n",
        "/v1/predictor?model=org%2Fm%26n",
    ] == asked
