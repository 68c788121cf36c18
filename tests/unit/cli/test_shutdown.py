"""`justitia shutdown`: what is meant, and what the command says; no cluster in here."""

from pathlib import Path

import pytest
import ray

from justitia_ray.cli.main import main
from justitia_ray.config import AppConfig, parse_app_config
from justitia_ray.serve import shutdown
from justitia_ray.serve.running import Running, SchedulerName, scheduler_of
from justitia_ray.serve.shutdown import Chosen, Outcome, named_in

SERVE_FILE = """
applications:
  - name: agents
    import_path: justitia_ray.serve.app:build
    args: {name: agents, model: {name: org/m, path: none}, scheduler: {namespace: blue}}
"""


def config(name: str, model: str, namespace: str = "justitia") -> AppConfig:
    """Return an application's configuration."""
    return parse_app_config(
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
def test_scheduler_is_known_by_its_name(actor_name: str, scheduler: SchedulerName | None) -> None:
    """It may be all that is left of an application; model names hold slashes."""
    assert scheduler == scheduler_of("n", actor_name)


def test_name_leads_back_to_the_same_actor() -> None:
    """A scheduler found by name is ended by a configuration made from that name."""
    original = config("agents", "org/m", "blue")
    found = scheduler_of("blue", original.scheduler_name)

    assert found == SchedulerName.of(original)
    assert found is not None
    assert original.scheduler_name == found.as_config().scheduler_name
    assert "blue" == found.as_config().scheduler.namespace


def test_everything_is_meant_unless_something_is_named() -> None:
    """`justitia shutdown` alone is the end of all of it."""
    chosen = Chosen()

    assert chosen.application("any", None)
    assert chosen.application("any", (config("a", "m"),))
    assert chosen.scheduler(SchedulerName("n", "a", "m"))


def test_name_and_model_narrow_what_is_meant() -> None:
    """Two models of one name have a scheduler each; the other one must live."""
    chosen = Chosen("a", "m")

    assert chosen.application("serve-name", (config("a", "m"),))
    assert not chosen.application("serve-name", (config("a", "other"),))
    assert not chosen.application("a", (config("b", "m"),))
    assert chosen.scheduler(SchedulerName("n", "a", "m"))
    assert not chosen.scheduler(SchedulerName("n", "a", "other"))


def test_application_without_a_configuration_is_meant_by_serve_s_name() -> None:
    """`serve.run` leaves Serve without our arguments; its own name is what there is."""
    assert Chosen("a").application("a", None)
    assert not Chosen("a").application("b", None)


def test_file_means_its_applications_and_their_schedulers(tmp_path: Path) -> None:
    """Only those: another team's may run on the same cluster."""
    file = tmp_path / "serve.yaml"
    file.write_text(SERVE_FILE)
    chosen = named_in(file)

    assert chosen.application("agents", None)
    assert not chosen.application("others", (config("agents", "org/m", "blue"),))
    assert chosen.scheduler(SchedulerName("blue", "agents", "org/m"))
    assert not chosen.scheduler(SchedulerName("green", "agents", "org/m"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config", "f.yaml", "--name", "a"], "--config and --name cannot be given together"),
        (["--model", "m"], "--model needs --name"),
        (["--config", "none.yaml"], "none.yaml: No such file or directory"),
    ],
)
def test_contradiction_ends_nothing(
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A command that deletes must not guess."""
    monkeypatch.setattr(shutdown, "shut_down", lambda *arguments: pytest.fail("it ended something"))

    assert 2 == main(["shutdown", *arguments])
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("outcome", "status", "said"),
    [
        (Outcome(), 0, "nothing of justitia_ray that was asked for runs on this cluster\n"),
        (Outcome(ended=["ended x"]), 0, "ended x\n"),
        (Outcome(ended=["ended x"], left=["y is left"]), 1, "ended x\n"),
    ],
)
def test_command_says_what_was_ended_and_fails_if_something_is_left(
    outcome: Outcome,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A script that cleans up has to know whether it did."""
    monkeypatch.setattr(shutdown, "shut_down", lambda *arguments: outcome)

    assert status == main(["shutdown"])
    printed = capsys.readouterr()
    assert said == printed.out
    assert outcome.left == [
        line.removeprefix("justitia shutdown: ") for line in printed.err.splitlines()
    ]


def test_no_ray_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray's own error is three lines about environment variables."""

    def refuse(**arguments: object) -> None:
        raise ConnectionError("Could not find any running Ray instance.\nSet RAY_ADDRESS.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)

    assert 1 == main(["shutdown"])
    assert (
        "justitia shutdown: no Ray cluster can be reached at 'auto':"
        " Could not find any running Ray instance.\n"
    ) == capsys.readouterr().err


def test_one_of_several_models_is_no_application_to_end() -> None:
    """The others would go with it; their scheduler is in use, and what is left is told."""
    both = (config("a", "m"), config("a", "n"))
    chosen = Chosen("a", "m")

    assert not chosen.application("serve-name", both)
    assert chosen.names_a_part(both)
    assert Chosen("a").application("serve-name", both)
    assert not Chosen("a").names_a_part(both)
    assert not Chosen("a", "gone").names_a_part(both)
    outcome = Outcome()
    running = Running({"serve-name": both}, frozenset(SchedulerName.of(c) for c in both))
    assert running.schedulers == shutdown._in_use(chosen, running, outcome)
    assert "serves other models than 'm' too: leave out --model" in outcome.left[0]


def test_scheduler_left_of_a_model_that_was_taken_out_is_meant() -> None:
    """The application that it belonged to goes on with the others."""
    running = Running({"serve-name": (config("a", "m"), config("a", "n"))}, frozenset())
    chosen, outcome = Chosen("a", "gone"), Outcome()

    assert set() == shutdown._in_use(chosen, running, outcome)
    assert chosen.scheduler(SchedulerName("justitia", "a", "gone"))
    assert [] == outcome.left


def test_naming_one_of_several_models_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its scheduler is in use: without it the replicas of that model would stand idle."""
    both = (config("a", "m"), config("a", "n"))
    running = Running({"serve-name": both}, frozenset(SchedulerName.of(c) for c in both))
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(shutdown, "find_running", lambda: running)
    monkeypatch.setattr(shutdown, "end_scheduler", lambda config: pytest.fail("it was ended"))

    assert 1 == main(["shutdown", "--name", "a", "--model", "m"])
    assert "application 'serve-name' serves other models than 'm' too" in capsys.readouterr().err
