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
from justitia_ray.doctor.rule import Look
from justitia_ray.errors import ResponseError
from justitia_ray.protocol.inspection import read_inspection
from tests.unit.cli.noting_service import Answer, noting_service
from tests.unit.doctor.healthy import inspection

Json = dict[str, Any]
HEALTHY = inspection()
CHECKS = count_checks(Look(read_inspection(HEALTHY)))

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
    """Leave out the pause between the two inspections, as the service does not change."""
    monkeypatch.setattr(doctor, "_LEAST_INTERVAL_S", 0.0)


LEARNS: Answer = (200, {"learns": True, "classes": {}})


def answering(seen: Json, predictor: Answer = LEARNS) -> Callable[..., Answer]:
    answers = {"/v1/examination": (200, seen), "/v1/predictor": predictor}
    return lambda method, path, body: answers[path]


def examined(service: Json | Answer | Callable[..., Answer], *options: str) -> int:
    answer = answering(service) if isinstance(service, dict) else service
    with noting_service(answer) as url:
        return main(["doctor", "--url", url, "--interval-s", "0", *options])


def broken() -> Json:
    """Return a service with two failures, one of them fourfold, and a warning."""
    seen = deepcopy(HEALTHY)
    seen["replicas"]["r1"]["held"] = {}
    for number in range(4):
        seen["ingress"]["tickets"][f"lost-{number}"] = True
    seen["scheduler"]["store"]["trouble"] = "Redis at host:1: refused"
    return seen


def test_healthy_service_is_one_line_and_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    """A cron job uses status 0; checks that were skipped are listed."""
    status = examined(HEALTHY)

    assert (
        0,
        [
            "Redis was not looked at: give --config FILE, the Serve configuration file",
            f"justitia/m: {CHECKS} checks, nothing wrong",
        ],
    ) == (status, capsys.readouterr().out.splitlines())


def test_failures_are_printed_with_a_remedy_and_status_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The worst finding comes first, and at most three equal ones are shown."""
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
    """Bug reports and alerts need every finding with its evidence."""
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


def test_findings_cannot_send_escape_sequences_to_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Anybody may write names into Redis, so escape sequences are removed from the output."""
    seen = deepcopy(HEALTHY)
    seen["scheduler"]["store"]["trouble"] = "\x1b[2Jall is well\x07"

    assert 1 == examined(seen)
    assert "cannot save: ?[2Jall is well?" in capsys.readouterr().out


def test_note_alone_exits_with_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    """Applications of a replaced ingress end by themselves, so no operator needs to act."""
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
    """The inspection covers the whole service, not only the predictor."""
    assert 1 == examined(answering(HEALTHY, predictor))
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
    """The URL may be of an older version or of another program."""
    status = examined(answer)
    err = capsys.readouterr().err

    assert 2 == status
    assert said in err
    assert 1 == len(err.splitlines())


def test_redis_that_does_not_answer_from_here_is_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A check that could not be made must not look like a passed one."""
    file = tmp_path / "serve.yaml"
    file.write_text(SERVE_FILE.replace("NAME", "justitia"))
    seen = deepcopy(HEALTHY)
    # the check waits for three save intervals
    seen["scheduler"]["store"]["save_interval_s"] = 0.001
    status = examined(seen, "--config", str(file))
    out = " ".join(capsys.readouterr().out.split())

    assert 1 == status
    assert "Redis cannot be reached from here: Redis at unix:///nowhere/redis.sock" in out
    assert "1 risk" in out
    assert "was not looked at" not in out


def test_file_of_another_application_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With another Redis all of its applications would be reported as orphans."""
    file = tmp_path / "serve.yaml"
    file.write_text(SERVE_FILE.replace("NAME", "other"))

    assert 2 == examined(HEALTHY, "--config", str(file))
    assert f"{file} has other/m, and justitia/m is served at this URL" in capsys.readouterr().err


def test_inspection_of_a_newer_service_may_have_more_fields() -> None:
    """One version of the command can examine a service of the next version."""
    newer = deepcopy(HEALTHY) | {"weather": "fine"}
    newer["scheduler"]["leases"]["3-1"]["colour"] = "green"

    assert read_inspection(HEALTHY) == read_inspection(newer)
    with pytest.raises(ResponseError, match=r"scheduler\.ready: Field required"):
        read_inspection(HEALTHY | {"scheduler": {}})


def of_two(second: Json) -> Callable[..., Answer]:
    """Return a service of two models with this inspection of the second."""
    predictors: Json = {"m": {"learns": True}, "n": {"error": "the predictor is away"}}
    answers: dict[str, Json] = {
        "/v1/examination": {"models": {"m": HEALTHY, "n": second | {"model": "n"}}},
        "/v1/predictor": {"models": predictors},
        "/v1/examination?model=m": HEALTHY,
        "/v1/predictor?model=m": predictors["m"],
    }
    return lambda method, path, body: (200, answers[path])


def test_each_of_several_models_is_examined(capsys: pytest.CaptureFixture[str]) -> None:
    service = of_two(broken())

    assert 1 == examined(service)
    said = capsys.readouterr().out
    assert 0 == examined(service, "--model", "m")
    ends = [line for line in said.splitlines() if f": {CHECKS} checks, " in line]
    assert f"justitia/m: {CHECKS} checks, nothing wrong" == ends[0]
    assert f"justitia/n: {CHECKS} checks, 5 wrong, 2 risk" == ends[1]
    assert "the predictor gives no answer: the predictor is away" in said


def test_json_of_several_models_is_by_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    """Each model's JSON has the same form as that of a single model."""
    status = examined(of_two(HEALTHY), "--json")
    told = json.loads(capsys.readouterr().out)

    assert (1, True) == (status, told["wrong"])
    assert [("m", False), ("n", True)] == [(n, m["wrong"]) for n, m in told["models"].items()]


def test_model_that_is_not_served_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The error distinguishes an unknown model from a service without inspections."""
    unknown = {"error": {"message": "the model 'x' does not exist", "code": "model_not_found"}}
    assert 2 == examined((404, unknown), "--model", "x")
    said = capsys.readouterr().err
    assert "the model 'x' does not exist" in said
    assert "no application that can be examined" not in said
