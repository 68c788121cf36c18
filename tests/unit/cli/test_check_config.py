"""`justitia check-config`: every error of a file, one line each, before anything is deployed."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from justitia_ray.cli.main import main

SHIPPED = sorted((Path(__file__).parents[3] / "deployments").glob("*.yaml"))
FILE: dict[str, Any] = {
    "applications": [
        {
            "name": "justitia",
            "route_prefix": "/",
            "import_path": "justitia_ray.serve.app:build",
            "args": {"model": {"name": "m", "path": "none"}, "engine": {"kind": "fake"}},
            "deployments": [{"name": "Ingress", "user_config": {"policy": "fcfs"}}],
        }
    ]
}


def errors_of(
    values: Any, directory: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, list[str]]:
    """Run the command on a file with these values; return its status and its lines of error."""
    file = directory / "serve.yaml"
    file.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
    status = main(["check-config", str(file)])
    lines = capsys.readouterr().err.splitlines()
    return status, [line.removeprefix(f"{file}: ") for line in lines]


@pytest.mark.parametrize("file", SHIPPED, ids=[file.name for file in SHIPPED])
def test_shipped_file_is_fine(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Users begin with these files."""
    assert 0 == main(["check-config", str(file)])
    assert "application 'justitia' is fine" in capsys.readouterr().out


def test_every_error_has_a_line_with_key_value_and_what_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator mends a file in one go, without reading the schema."""
    values = deepcopy(FILE)
    application = values["applications"][0]
    application["args"]["ingress"] = {"attempts": 0, "keepalive": 3}
    application["args"]["store"] = {"redis_url": "redis://:secret@host:6379/0"}
    application["deployments"][0]["user_config"] = {"policy": "fifo"}
    application["deployments"].append({"name": "Replicas", "num_replicas": 2})
    status, errors = errors_of(values, tmp_path, capsys)

    assert 2 == status
    found = {error.split(": ")[0]: error for error in errors}
    assert {
        "applications[0].args.ingress.attempts",
        "applications[0].args.ingress.keepalive",
        "applications[0].args.store",
        "applications[0].deployments[0].user_config",
        "applications[0].deployments[1].name",
    } == found.keys()
    assert "greater than 0 (got 0)" in found["applications[0].args.ingress.attempts"]
    assert "keepalive_s" in found["applications[0].args.ingress.keepalive"]
    assert "justitia, fcfs" in found["applications[0].deployments[0].user_config"]
    assert "Ingress, Predictor, Replica" in found["applications[0].deployments[1].name"]


def test_password_in_a_url_is_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output of a check ends up in the logs of a pipeline."""
    values = deepcopy(FILE)
    values["applications"][0]["args"]["store"] = {"redis_url": "redis://:secret@host:6379/0"}
    status, errors = errors_of(values, tmp_path, capsys)

    assert 2 == status
    assert "redis_password_env" in errors[0]
    assert "secret" not in errors[0]


def test_key_that_serve_would_ignore_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Serve passes over unknown keys, so that a slip would silently keep a default."""
    values = deepcopy(FILE)
    values["applications"][0]["deployments"][0]["num_replica"] = 4
    status, errors = errors_of(values, tmp_path, capsys)

    assert 2 == status
    assert errors[0].startswith("applications[0].deployments[0].num_replica: unknown key")
    assert "num_replicas" in errors[0]


def test_user_config_elsewhere_than_on_the_ingress_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Serve would fail the deployment minutes later: only Ingress takes settings while it runs."""
    values = deepcopy(FILE)
    values["applications"][0]["deployments"][0]["name"] = "Replica"

    assert (
        2,
        ["applications[0].deployments[0].user_config: only Ingress takes one (got it for Replica)"],
    ) == errors_of(values, tmp_path, capsys)


def test_two_applications_may_not_share_a_scheduler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two queues under one name would be one queue with two configurations."""
    values = deepcopy(FILE)
    second = deepcopy(values["applications"][0]) | {"name": "other", "route_prefix": "/other"}
    values["applications"].append(second)
    status, errors = errors_of(values, tmp_path, capsys)

    assert 2 == status
    assert errors[0].startswith("applications: 'justitia' and 'other' have the same args.name")


def test_file_without_our_application_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slip in `import_path` must not pass as a file with nothing to check."""
    values = deepcopy(FILE)
    values["applications"][0]["import_path"] = "justitia_ray.serve.apps:build"

    assert (2, ["applications: none has import_path justitia_ray.serve.app:build"]) == errors_of(
        values, tmp_path, capsys
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("applications: [", "is not YAML"),
        ("- a list", "is a mapping with `applications`"),
        ("http_options: {port: 8000}", "applications: Field required"),
        ("applications: [1]", "applications[0]: "),
    ],
)
def test_unreadable_file_is_one_sentence(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user's mistake gives no traceback."""
    status, errors = errors_of(text, tmp_path, capsys)

    assert 2 == status
    assert 1 == len(errors)
    assert said in errors[0]


def test_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The path is the mistake, so it is in the message."""
    assert 2 == main(["check-config", str(tmp_path / "none.yaml")])
    assert "none.yaml: No such file or directory" in capsys.readouterr().err


def of_two(**user_config: Any) -> dict[str, Any]:
    """Return a file of an application of two models."""
    values = deepcopy(FILE)
    application = values["applications"][0]
    application["args"] = {
        "models": [{"name": "org/m", "path": "none"}, {"name": "n", "path": "none"}],
        "engine": {"kind": "fake"},
    }
    application["deployments"] = [
        {"name": "Ingress", "user_config": user_config},
        {"name": "Replica-org-m", "num_replicas": 2},
        {"name": "Predictor-n"},
    ]
    return values


def test_models_of_an_application_are_told_with_their_policies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What each will be ordered by follows from two places in the file."""
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump(of_two(models={"n": {"policy": "fcfs"}})))

    assert 0 == main(["check-config", str(file)])
    assert capsys.readouterr().out.endswith(
        "is fine: model org/m, policy justitia, model n, policy fcfs\n"
    )


def test_mistakes_in_several_models_are_found_before_they_are_deployed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Serve would pass over a deployment of a name that there is not."""
    values = of_two(models={"x": {"policy": "fcfs"}})
    values["applications"][0]["deployments"].append({"name": "Replica"})
    status, errors = errors_of(values, tmp_path, capsys)

    assert 2 == status
    assert [
        "applications[0].deployments[3].name: one of Ingress, Predictor-org-m, Replica-org-m,"
        " Predictor-n, Replica-n is allowed (got 'Replica')",
        "applications[0].deployments[0].user_config.models: there is no model 'x'; org/m, n are"
        " served",
    ] == errors


def test_model_of_another_application_of_the_same_name_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both would pull from one queue, with replicas of different models perhaps."""
    values = of_two()
    other = deepcopy(FILE["applications"][0]) | {"name": "other", "route_prefix": "/other"}
    other["args"] = {"model": {"name": "n", "path": "none"}}
    values["applications"].append(other)
    status, errors = errors_of(values, tmp_path, capsys)

    assert 2 == status
    assert 1 == len(errors)
    assert (
        "'justitia' and 'other' have the same args.name and a model of the same name" in errors[0]
    )
