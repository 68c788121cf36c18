"""Engine options and environment variables are checked before any process starts."""

import logging
from typing import Any

import pytest

from justitia_ray.config import AppConfig
from justitia_ray.serve.engines import argument_checks
from justitia_ray.serve.engines.argument_checks import engine_mistake, parser_mistakes
from justitia_ray.serve.engines.vllm_variables import UNWANTED, drop_unwanted_variables


def config_of(name: str = "m", **engine: Any) -> AppConfig:
    return AppConfig.parse({"model": {"name": name, "path": "p"}, "engine": engine})


def test_fake_engine_takes_no_options_of_vllm() -> None:
    assert engine_mistake(config_of(kind="fake", vllm_args={"api_key": "s"})) is None
    assert {} == parser_mistakes([config_of(kind="fake")])


@pytest.mark.parametrize("name", sorted(UNWANTED))
def test_environment_variable_that_changes_vllms_server_is_refused_by_name(name: str) -> None:
    mistake = engine_mistake(config_of(env={name: "1"}))

    assert mistake is not None
    assert mistake.startswith(f"engine.env: {name} cannot be set here: ")


def test_unknown_vllm_variables_are_removed_and_named(caplog: pytest.LogCaptureFixture) -> None:
    """Variables of other programs on the node may hold secrets, so no value is shown."""
    environment = {
        "VLLM_API_KEY": "s3cret",
        "VLLM_PORT": "tcp://10.0.0.1:8000",
        "VLLM_LOGGING_LEVEL": "DEBUG",
    }
    with caplog.at_level(logging.WARNING):
        drop_unwanted_variables(environment)

    assert {"VLLM_LOGGING_LEVEL": "DEBUG"} == environment
    assert 2 == len(caplog.messages)
    assert "VLLM_API_KEY" in caplog.messages[0]
    assert "s3cret" not in caplog.text
    drop_unwanted_variables(port := {"VLLM_PORT": "29500"})
    assert {"VLLM_PORT": "29500"} == port


def test_vllms_parser_runs_once_for_equal_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run of vLLM's parser takes ten seconds, so its results are cached."""
    asked: list[str] = []

    def run_parser(question: str, environment: dict[str, str]) -> str | None:
        asked.append(question)
        assert "VLLM_API_KEY" not in environment
        return "vllm_args: wrong" if "max_modle_len" in question else None

    monkeypatch.setenv("VLLM_API_KEY", "s3cret")
    monkeypatch.setattr(argument_checks, "find_spec", lambda name: object())
    monkeypatch.setattr(argument_checks, "_run_parser", run_parser)
    models = [config_of(f"m{i}", vllm_args={"max_modle_len": 4}) for i in range(3)]
    mistakes = parser_mistakes([*models, config_of("fine")])

    assert dict.fromkeys(("m0", "m1", "m2"), "engine.vllm_args: wrong") == mistakes
    assert 2 == len(asked)


def test_missing_vllm_parser_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argument_checks, "find_spec", lambda name: None)

    assert parser_mistakes([config_of()]) is None
    assert {} == parser_mistakes([config_of(kind="fake")])


@pytest.mark.vllm
def test_vllms_parser_runs_in_a_separate_process() -> None:
    """Options are checked before replicas start, since Serve restarts a failing replica forever.

    `test_vllm_engine` has the parser's other errors, without the start of a process for each.
    """
    models = {
        "misspelt": config_of("misspelt", vllm_args={"max_modle_len": 4}),
        "fine": config_of(
            "fine", vllm_args={"max_model_len": "2k"}, env={"VLLM_LOGGING_LEVEL": "INFO"}
        ),
    }
    mistakes = parser_mistakes(models.values())

    assert mistakes is not None
    assert {"misspelt"} == mistakes.keys()
    assert mistakes["misspelt"].startswith("engine.vllm_args: ")
    assert "vLLM says: unrecognized arguments: --max-modle-len=4" in mistakes["misspelt"]
