"""`justitia status`: the service's own words, readable."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from justitia_ray.cli.main import main
from justitia_ray.cli.status import readable
from tests.unit.cli.noting_service import Answer, noting_service

ANSWER: dict[str, Any] = {
    "model": "fake-7b",
    "ready": True,
    "degraded": None,
    "epoch": 3,
    "policy": "justitia",
    "settings": {"policy": "justitia", "admission": "peak"},
    "applications": 2,
    "waiting": 1_040,
    "in_flight": 7,
    "grants": 99,
    "backlog_kv_tokens": 5_000,
    "recovering": False,
    "ingresses": 1,
    "replicas": {"abc": {"kv_tokens": 7_344, "leases": 7, "draining": True, "silent_s": 0.25}},
    "kv": {"used_token_s": 50.0, "capacity_token_s": 200.0, "preemptions": 4},
    "version": "0.1.0",
}


@contextmanager
def serving(status: int, body: bytes) -> Iterator[str]:
    """Serve one answer to every request; yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/v1/status" else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_answer_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    """An operator sees at a glance what waits, and on which replicas it runs."""
    with serving(200, json.dumps(ANSWER).encode()) as url:
        status = main(["status", "--url", url])
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}

    assert 0 == status
    assert "justitia, admission peak" in lines["policy"]
    assert "1,040 waiting, 7 leased or running, 99 granted" in lines["inferences"]
    assert "25% on average" in lines["KV"]
    assert lines["abc"].split() == ["abc", "7,344", "7", "0.2", "draining"]


def test_what_is_kept_out_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """It waits for nothing that an operator could add: its ingress has to call, or is dead."""
    with serving(200, json.dumps(ANSWER | {"kept_out": 14}).encode()) as url:
        main(["status", "--url", url])

    assert "1,040 waiting (14 for silent ingresses), 7 leased" in capsys.readouterr().out


def test_json_is_the_answer_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts read what the service said, not what this version shows of it."""
    with serving(200, json.dumps(ANSWER).encode()) as url:
        status = main(["status", "--json", "--url", url])

    assert (0, ANSWER) == (status, json.loads(capsys.readouterr().out))


def test_scheduler_that_starts_is_shown_as_not_ready() -> None:
    """It says nothing of itself but that; the command must not fail on what is left out."""
    text = readable({"model": "m", "ready": False, "degraded": "starting", "epoch": 0})

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
    assert f"state         {state}" in readable(ANSWER | change).splitlines()


def test_error_of_the_service_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1: the service did not do what was asked."""
    body = b'{"error": {"message": "the scheduler is being started again", "code": null}}'
    with serving(503, body) as url:
        status = main(["status", "--url", url])

    assert 1 == status
    assert "justitia status: 503: the scheduler is being started again\n" == capsys.readouterr().err


def test_nobody_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """The commonest mistake, a wrong port, gives no traceback."""
    with serving(200, b"{}") as url:
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

    assert f"{readable(ANSWER)}\n\n{readable(away)}" == text
    assert "not ready: no answer within 5 s" in text


def test_one_of_several_models_can_be_asked_for() -> None:
    """Its name may hold what a URL gives another meaning."""
    asked = []

    def answer(method: str, path: str, body: Any) -> Answer:
        asked.append(path)
        return 200, ANSWER

    with noting_service(answer) as url:
        assert 0 == main(["status", "--url", url, "--model", "org/m&n"])

    assert ["/v1/status?model=org%2Fm%26n"] == asked
