"""`justitia shutdown`: selection of applications and schedulers, tested without a cluster."""

from pathlib import Path
from typing import Any

import pytest
import ray

from justitia_ray.cli.main import main
from justitia_ray.config import AppConfig
from justitia_ray.serve.ops import shutdown
from justitia_ray.serve.ops.config_file import read_applications
from justitia_ray.serve.ops.shutdown import (
    Chosen,
    SchedulerName,
    ShutdownOutcome,
    find_applications,
    scheduler_of,
)

SERVE_FILE = """
applications:
  - name: agents
    import_path: justitia_ray.serve.app:build
    args: {name: agents, model: {name: org/m, path: none}, scheduler: {namespace: blue}}
"""


def app_config(name: str, model: str, namespace: str = "justitia") -> AppConfig:
    return AppConfig.parse(
        {
            "name": name,
            "model": {"name": model, "path": "none"},
            "scheduler": {"namespace": namespace},
        }
    )


@pytest.mark.parametrize(
    ("actor_name", "scheduler"),
    [
        ("scheduler/justitia/fake-7b", SchedulerName("n", "justitia", "fake-7b")),
        ("scheduler/justitia/Qwen/Qwen3-8B", SchedulerName("n", "justitia", "Qwen/Qwen3-8B")),
        ("scheduler/justitia", None),
        ("scheduler//m", None),
        ("SERVE_REPLICA::justitia#Replica#abc", None),
    ],
)
def test_shutdown_recognises_a_scheduler_by_its_actor_name(
    actor_name: str, scheduler: SchedulerName | None
) -> None:
    """The scheduler may be all that is left of an application."""
    assert scheduler == scheduler_of("n", actor_name)
    assert scheduler is None or actor_name == scheduler.actor_name


@pytest.mark.parametrize(
    ("names", "is_ours"),
    [
        (("Ingress", "Replica", "Predictor"), True),
        (("Ingress", "Replica-m", "Predictor-m", "Replica-n", "Predictor-n"), True),
        (("Ingress", "Replica"), False),
        (("Ingress", "Replica", "Predictor", "Agent"), False),
    ],
)
def test_shutdown_recognises_an_application_by_its_deployments(
    names: tuple[str, ...], is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    details: dict[str, Any] = {
        "a": {"deployed_app_config": None, "deployments": {name: {} for name in names}}
    }
    monkeypatch.setattr(shutdown, "serve_applications", lambda: details)

    assert ({"a": None} if is_ours else {}) == find_applications()


@pytest.mark.parametrize(
    ("chosen", "serve_name", "configs", "is_meant"),
    [
        pytest.param(Chosen(), "any", None, True, id="everything, unless something is named"),
        pytest.param(Chosen(), "any", (app_config("a", "m"),), True, id="configured or not"),
        pytest.param(Chosen("a", "m"), "x", (app_config("a", "m"),), True, id="by name and model"),
        pytest.param(Chosen("a", "m"), "x", (app_config("a", "n"),), False, id="another model"),
        pytest.param(Chosen("a", "m"), "a", (app_config("b", "m"),), False, id="another name"),
        pytest.param(Chosen("a"), "a", None, True, id="not configured: by the name in Serve"),
        pytest.param(Chosen("a"), "b", None, False, id="another name in Serve"),
        pytest.param(
            Chosen("a", "m"),
            "x",
            (app_config("a", "m"), app_config("a", "n")),
            False,
            id="one of two",
        ),
        pytest.param(
            Chosen("a"), "x", (app_config("a", "m"), app_config("a", "n")), True, id="both of two"
        ),
    ],
)
def test_shutdown_selects_an_application_by_name_and_model(
    chosen: Chosen, serve_name: str, configs: tuple[AppConfig, ...] | None, is_meant: bool
) -> None:
    assert is_meant == chosen.application(serve_name, configs)


def test_shutdown_selects_a_scheduler_by_name_and_model() -> None:
    """`justitia shutdown` without arguments ends all schedulers."""
    scheduler = SchedulerName("n", "a", "m")
    chosen = [Chosen(), Chosen("a", "m"), Chosen("a", "other")]

    assert [True, True, False] == [each.scheduler(scheduler) for each in chosen]


def test_configuration_file_selects_the_applications_to_shut_down(tmp_path: Path) -> None:
    """Applications of another team may run on the same cluster."""
    file = tmp_path / "serve.yaml"
    file.write_text(SERVE_FILE)
    chosen = Chosen(configs={a.serve_name: a.configs for a in read_applications(file)})

    assert chosen.application("agents", None)
    assert not chosen.application("others", (app_config("agents", "org/m", "blue"),))
    assert chosen.scheduler(SchedulerName("blue", "agents", "org/m"))
    assert not chosen.scheduler(SchedulerName("green", "agents", "org/m"))


@pytest.mark.parametrize(
    ("outcome", "status", "said"),
    [
        (ShutdownOutcome(), 0, "nothing of justitia_ray that was asked for runs on this cluster\n"),
        (ShutdownOutcome(ended=["ended x"]), 0, "ended x\n"),
        (ShutdownOutcome(ended=["ended x"], left=["y is left"]), 1, "ended x\n"),
    ],
)
def test_shutdown_fails_if_a_part_of_the_application_remains(
    outcome: ShutdownOutcome,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A cleanup script must see whether everything ended."""
    monkeypatch.setattr(shutdown, "shut_down", lambda *arguments: outcome)

    assert status == main(["shutdown"])
    printed = capsys.readouterr()
    assert said == printed.out
    assert outcome.left == [
        line.removeprefix("justitia shutdown: ") for line in printed.err.splitlines()
    ]


def test_missing_ray_cluster_is_reported_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray's own error has three lines about environment variables."""

    def refuse_connection(**arguments: object) -> None:
        raise ConnectionError("Could not find any running Ray instance.\nSet RAY_ADDRESS.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse_connection)

    assert 1 == main(["shutdown"])
    assert (
        "justitia shutdown: no Ray cluster can be reached at 'auto':"
        " Could not find any running Ray instance.\n"
    ) == capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "status", "ended"),
    [
        pytest.param("m", 1, [], id="in use: without it the replicas of m would stand idle"),
        pytest.param("gone", 0, ["scheduler/a/gone"], id="left of one that was taken out"),
    ],
)
def test_shutdown_ends_the_unused_scheduler_of_one_model(
    model: str,
    status: int,
    ended: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The application continues with its remaining models."""
    there = [app_config("a", name) for name in ("m", "n", "gone")]
    found: list[str] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(shutdown, "find_applications", lambda: {"serve-name": tuple(there[:2])})
    monkeypatch.setattr(shutdown, "find_schedulers", lambda: set(map(SchedulerName.of, there)))
    monkeypatch.setattr(shutdown, "end_scheduler", lambda name, namespace: found.append(name))

    assert status == main(["shutdown", "--name", "a", "--model", model])
    assert ended == found
    said = "application 'serve-name' serves other models than 'm' too"
    assert (said in capsys.readouterr().err) == bool(status)
