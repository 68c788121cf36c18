"""`justitia doctor`: its output, exit status, and the services it refuses."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.cli import doctor
from justitia_ray.cli.main import main
from justitia_ray.doctor.report import count_checks
from justitia_ray.doctor.rule import Snapshot
from justitia_ray.errors import ResponseError
from justitia_ray.protocol.inspection import read_inspection
from tests.unit.cli.noting_service import Answer, recording_service
from tests.unit.doctor.healthy import healthy_inspection

Json = dict[str, Any]
HEALTHY = healthy_inspection()
CHECKS = count_checks(Snapshot(read_inspection(HEALTHY)))

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
def _skip_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the pause between two inspections."""
    monkeypatch.setattr(doctor, "_LEAST_INTERVAL_S", 0.0)


LEARNS: Answer = (200, {"learns": True, "classes": {}})


def answer_with(seen: Json, predictor: Answer = LEARNS) -> Callable[..., Answer]:
    answers = {"/v1/examination": (200, seen), "/v1/predictor": predictor}
    return lambda method, path, body: answers[path]


def run_doctor(service: Json | Answer | Callable[..., Answer], *options: str) -> int:
    answer = answer_with(service) if isinstance(service, dict) else service
    with recording_service(answer) as url:
        return main(["doctor", "--url", url, "--interval-s", "0", *options])


def broken_inspection() -> Json:
    """Return the inspection of a service with two failures and a warning."""
    seen = deepcopy(HEALTHY)
    seen["replicas"]["r1"]["held"] = {}
    for number in range(4):
        seen["ingress"]["tickets"][f"lost-{number}"] = True
    seen["scheduler"]["store"]["trouble"] = "Redis at host:1: refused"
    return seen


def test_healthy_service_prints_one_line_and_exits_with_0(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A cron job relies on the exit status."""
    status = run_doctor(HEALTHY)

    assert (
        0,
        [
            "Redis was not looked at: give --config FILE, the Serve configuration file",
            f"justitia/m: {CHECKS} checks, nothing wrong",
        ],
    ) == (status, capsys.readouterr().out.splitlines())


def test_failures_are_printed_with_a_remedy_and_exit_with_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The worst finding comes first."""
    status = run_doctor(broken_inspection())
    out = capsys.readouterr().out
    heads = [line.split("  ")[0].strip() for line in out.splitlines() if line[:1].strip()]

    assert 1 == status
    assert ["wrong", "wrong", "wrong", "wrong", "risk"] == heads[:5]
    assert "and 1 more like it; --json has all" in out
    assert "do: its caller waits for nothing: restart that replica" in out
    assert f"{CHECKS} checks, 5 wrong, 1 risk" in out.splitlines()[-1]
    assert all(len(line) <= 100 for line in out.splitlines())


def test_json_has_every_finding_with_its_evidence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Bug reports and alerts need every finding with its evidence."""
    status = run_doctor(broken_inspection(), "--json")
    told = json.loads(capsys.readouterr().out)

    assert (1, True, False, CHECKS) == (
        status,
        told["wrong"],
        told["redis_looked_at"],
        told["checks"],
    )
    assert 6 == len(told["findings"])
    assert {"rule", "severity", "subject", "what", "do"} == set(told["findings"][0])
    assert [broken_inspection(), broken_inspection()] == told["examinations"]


def test_findings_contain_no_escape_sequences(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Any program may write names into Redis, so escape sequences are removed from the output."""
    seen = deepcopy(HEALTHY)
    seen["scheduler"]["store"]["trouble"] = "\x1b[2Jall is well\x07"

    assert 1 == run_doctor(seen)
    assert "cannot save: ?[2Jall is well?" in capsys.readouterr().out


def test_informational_finding_alone_exits_with_status_0(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Applications of a replaced ingress end by themselves, so no operator needs to act."""
    seen = deepcopy(HEALTHY)
    seen["scheduler"]["applications"]["resting"]["ingress_id"] = "ingress-0"

    assert 0 == run_doctor(seen)
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
def test_unavailable_predictor_is_a_finding_of_the_doctor(
    predictor: Answer, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 1 == run_doctor(answer_with(HEALTHY, predictor))
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, {"error": {"message": "GET: Not Found"}}), "no application that can be examined"),
        ((200, {"name": "x"}), "it is no examination: model: Field required"),
    ],
)
def test_url_of_another_program_exits_with_status_2(
    answer: Answer, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The URL may belong to an older version or to another program."""
    status = run_doctor(answer)
    err = capsys.readouterr().err

    assert 2 == status
    assert said in err
    assert 1 == len(err.splitlines())


def test_unreachable_redis_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A check that could not be made must not look like a passed check."""
    file = tmp_path / "serve.yaml"
    file.write_text(SERVE_FILE.replace("NAME", "justitia"))
    seen = deepcopy(HEALTHY)
    # this check waits for three save intervals
    seen["scheduler"]["store"]["save_interval_s"] = 0.001
    status = run_doctor(seen, "--config", str(file))
    out = " ".join(capsys.readouterr().out.split())

    assert 1 == status
    assert "Redis cannot be reached from here: Redis at unix:///nowhere/redis.sock" in out
    assert "1 risk" in out
    assert "was not looked at" not in out


def test_doctor_refuses_the_configuration_of_another_application(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the Redis of another application, all its applications would be reported as orphans."""
    file = tmp_path / "serve.yaml"
    file.write_text(SERVE_FILE.replace("NAME", "other"))

    assert 2 == run_doctor(HEALTHY, "--config", str(file))
    assert f"{file} has other/m, and justitia/m is served at this URL" in capsys.readouterr().err


def test_doctor_ignores_new_fields_of_a_newer_release() -> None:
    """One version of the command can examine a service of the next version."""
    newer = deepcopy(HEALTHY) | {"weather": "fine"}
    newer["scheduler"]["leases"]["3-1"]["colour"] = "green"

    assert read_inspection(HEALTHY) == read_inspection(newer)
    with pytest.raises(ResponseError, match=r"scheduler\.ready: Field required"):
        read_inspection(HEALTHY | {"scheduler": {}})


def answer_with_two_models(second: Json) -> Callable[..., Answer]:
    """Return the answers of a service of two models, with this inspection of the second model."""
    predictors: Json = {"m": {"learns": True}, "n": {"error": "the predictor is away"}}
    answers: dict[str, Json] = {
        "/v1/examination": {"models": {"m": HEALTHY, "n": second | {"model": "n"}}},
        "/v1/predictor": {"models": predictors},
        "/v1/examination?model=m": HEALTHY,
        "/v1/predictor?model=m": predictors["m"],
    }
    return lambda method, path, body: (200, answers[path])


def test_doctor_examines_each_of_several_models(capsys: pytest.CaptureFixture[str]) -> None:
    service = answer_with_two_models(broken_inspection())

    assert 1 == run_doctor(service)
    said = capsys.readouterr().out
    assert 0 == run_doctor(service, "--model", "m")
    ends = [line for line in said.splitlines() if f": {CHECKS} checks, " in line]
    assert f"justitia/m: {CHECKS} checks, nothing wrong" == ends[0]
    assert f"justitia/n: {CHECKS} checks, 5 wrong, 2 risk" == ends[1]
    assert "the predictor gives no answer: the predictor is away" in said


def test_json_of_several_models_is_keyed_by_model_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Each model's JSON has the same form as that of a single model."""
    status = run_doctor(answer_with_two_models(HEALTHY), "--json")
    told = json.loads(capsys.readouterr().out)

    assert (1, True) == (status, told["wrong"])
    assert [("m", False), ("n", True)] == [(n, m["wrong"]) for n, m in told["models"].items()]


def test_unknown_model_is_named_in_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    unknown = {"error": {"message": "the model 'x' does not exist", "code": "model_not_found"}}
    assert 2 == run_doctor((404, unknown), "--model", "x")
    said = capsys.readouterr().err
    assert "the model 'x' does not exist" in said
    assert "no application that can be examined" not in said
