"""`justitia doctor`: its words, its exit status, and what it refuses."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.cli import doctor
from justitia_ray.cli.main import main
from justitia_ray.doctor.front_rules import FRONT_RULES
from justitia_ray.doctor.scaling_rules import SCALING_RULES
from justitia_ray.doctor.service_rules import SERVICE_RULES
from justitia_ray.doctor.store_rules import STORE_RULES
from justitia_ray.errors import ResponseError
from justitia_ray.protocol.inspection import read_inspection
from tests.unit.cli.noting_service import Answer, noting_service
from tests.unit.doctor.healthy import inspection

Json = dict[str, Any]
HEALTHY = inspection()
CHECKS = len(SERVICE_RULES) + len(SCALING_RULES) + len(FRONT_RULES) + len(STORE_RULES)

SERVE_FILE = """
applications:
  - name: justitia
    import_path: justitia_ray.serve.app:build
    args:
      name: NAME
      model: {name: m, path: none}
      engine: {kind: fake}
      store: {redis_url: "unix:///nowhere/redis.sock"}
"""


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two looks follow each other at once: this service does not change between them."""
    monkeypatch.setattr(doctor, "_LEAST_INTERVAL_S", 0.0)


LEARNS: Answer = (200, {"learns": True, "classes": {}})


def answering(seen: Json, predictor: Answer = LEARNS) -> Callable[..., Answer]:
    """Return a service that is examined."""
    answers = {"/v1/examination": (200, seen), "/v1/predictor": predictor}
    return lambda method, path, body: answers[path]


def examined(service: Json | Answer | Callable[..., Answer], *options: str) -> int:
    """Run the command on a service that says or answers this, and return its exit status."""
    answer = answering(service) if isinstance(service, dict) else service
    with noting_service(answer) as url:
        return main(["doctor", "--url", url, "--interval-s", "0", *options])


def broken() -> Json:
    """Return a service with two things wrong, one of them four times, and a risk."""
    seen = deepcopy(HEALTHY)
    seen["replicas"]["r1"]["held"] = {}
    for number in range(4):
        seen["ingress"]["tickets"][f"lost-{number}"] = True
    seen["scheduler"]["store"]["trouble"] = "Redis at host:1: refused"
    return seen


def test_healthy_service_is_one_line_and_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    """Status 0 is what a cron job goes by; what was not looked at is said, too."""
    status = examined(HEALTHY)

    assert (
        0,
        [
            "Redis was not looked at: give --config FILE, the Serve configuration file",
            f"justitia/m: {CHECKS} checks, nothing wrong",
        ],
    ) == (status, capsys.readouterr().out.splitlines())


def test_what_is_wrong_is_said_with_what_to_do_and_status_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The worst first; of many alike three are shown, so that nothing else scrolls away."""
    status = examined(broken())
    out = capsys.readouterr().out
    heads = [line.split("  ")[0].strip() for line in out.splitlines() if line[:1].strip()]

    assert 1 == status
    assert ["wrong", "wrong", "wrong", "wrong", "risk"] == heads[:5]
    assert "and 1 more like it; --json has all" in out
    assert "do: its caller waits for nothing: restart that replica" in out
    assert f"{CHECKS} checks, 5 wrong, 1 risk" in out.splitlines()[-1]
    assert all(len(line) <= 100 for line in out.splitlines())


def test_json_has_every_finding_and_what_it_was_found_in(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What a bug report needs, and what an alert reads."""
    status = examined(broken(), "--json")
    told = json.loads(capsys.readouterr().out)

    assert (1, True, False, CHECKS) == (
        status,
        told["wrong"],
        told["redis_looked_at"],
        told["checks"],
    )
    assert 6 == len(told["findings"])
    assert {"rule", "severity", "subject", "what", "do"} == set(told["findings"][0])
    assert [broken(), broken()] == told["examinations"]


def test_terminal_is_told_nothing_by_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    """Names in Redis may be written by anybody: no escape sequence reaches the operator."""
    seen = deepcopy(HEALTHY)
    seen["scheduler"]["store"]["trouble"] = "\x1b[2Jall is well\x07"

    assert 1 == examined(seen)
    assert "cannot save: ?[2Jall is well?" in capsys.readouterr().out


def test_note_alone_is_no_reason_for_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    """An application whose ingress was replaced ends by itself: nobody is to be woken for it."""
    seen = deepcopy(HEALTHY)
    seen["scheduler"]["applications"]["resting"]["ingress_id"] = "ingress-0"

    assert 0 == examined(seen)
    assert capsys.readouterr().out.splitlines()[-1].endswith("nothing wrong, 1 note")


@pytest.mark.parametrize(
    ("predictor", "said"),
    [
        pytest.param(
            (503, {"error": {"message": "the predictor gives no answer: away", "code": None}}),
            "the predictor gives no answer: 503: the predictor",
            id="away: the inspection goes on without a part of the service",
        ),
        pytest.param(
            (200, {"learns": False, "classes": {}}),
            "does not learn",
            id="its answer is read: what is learned is lost without a word else",
        ),
    ],
)
def test_trouble_of_the_predictor_is_a_finding_and_no_failure(
    predictor: Answer, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The inspection is of the whole service."""
    assert 1 == examined(answering(HEALTHY, predictor))
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, {"error": {"message": "GET: Not Found"}}), "no application that can be examined"),
        ((200, {"name": "x"}), "it is no examination: model: Field required"),
    ],
)
def test_something_else_that_answers_is_status_2(
    answer: Answer, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An older version, or a port that is somebody else's: one sentence."""
    status = examined(answer)
    err = capsys.readouterr().err

    assert 2 == status
    assert said in err
    assert 1 == len(err.splitlines())


def test_redis_that_does_not_answer_from_here_is_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was to be looked at: a check that was not made must not pass for a good one."""
    file = tmp_path / "serve.yaml"
    file.write_text(SERVE_FILE.replace("NAME", "justitia"))
    seen = deepcopy(HEALTHY)
    seen["scheduler"]["store"]["save_interval_s"] = 0.001  # three of them are waited for
    status = examined(seen, "--config", str(file))
    out = " ".join(capsys.readouterr().out.split())

    assert 1 == status
    assert "Redis cannot be reached from here: Redis at unix:///nowhere/redis.sock" in out
    assert "1 risk" in out
    assert "was not looked at" not in out


def test_file_of_another_application_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its Redis holds other applications: all of them would be called orphans."""
    file = tmp_path / "serve.yaml"
    file.write_text(SERVE_FILE.replace("NAME", "other"))

    assert 2 == examined(HEALTHY, "--config", str(file))
    assert f"{file} has other/m, and justitia/m is served at this URL" in capsys.readouterr().err


def test_newer_service_may_say_more() -> None:
    """The command of one version examines a service of the next."""
    newer = deepcopy(HEALTHY) | {"weather": "fine"}
    newer["scheduler"]["leases"]["3-1"]["colour"] = "green"

    assert read_inspection(HEALTHY) == read_inspection(newer)
    with pytest.raises(ResponseError, match=r"scheduler\.ready: Field required"):
        read_inspection(HEALTHY | {"scheduler": {}})


def of_two(second: Json) -> Callable[..., Answer]:
    """Return a service of two models, of which the second says this of itself."""
    predictors: Json = {"m": {"learns": True}, "n": {"error": "the predictor is away"}}
    answers: dict[str, Json] = {
        "/v1/examination": {"models": {"m": HEALTHY, "n": second | {"model": "n"}}},
        "/v1/predictor": {"models": predictors},
        "/v1/examination?model=m": HEALTHY,
        "/v1/predictor?model=m": predictors["m"],
    }
    return lambda method, path, body: (200, answers[path])


def test_each_of_several_models_is_examined(capsys: pytest.CaptureFixture[str]) -> None:
    """One that is well says nothing of another; one that is not makes the exit status 1."""
    service = of_two(broken())

    assert 1 == examined(service)
    said = capsys.readouterr().out
    assert 0 == examined(service, "--model", "m")
    ends = [line for line in said.splitlines() if f": {CHECKS} checks, " in line]
    assert f"justitia/m: {CHECKS} checks, nothing wrong" == ends[0]
    assert f"justitia/n: {CHECKS} checks, 5 wrong, 2 risk" == ends[1]
    assert "the predictor gives no answer: the predictor is away" in said


def test_json_of_several_models_is_by_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    """Each has the form that one alone has."""
    status = examined(of_two(HEALTHY), "--json")
    told = json.loads(capsys.readouterr().out)

    assert (1, True) == (status, told["wrong"])
    assert [("m", False), ("n", True)] == [(n, m["wrong"]) for n, m in told["models"].items()]


def test_model_that_is_not_served_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A service that has others is no stranger to inspections."""
    unknown = {"error": {"message": "the model 'x' does not exist", "code": "model_not_found"}}
    assert 2 == examined((404, unknown), "--model", "x")
    said = capsys.readouterr().err
    assert "the model 'x' does not exist" in said
    assert "no application that can be examined" not in said
