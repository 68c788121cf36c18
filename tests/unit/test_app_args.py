"""Arguments of an application of several models: what each goes by, and what is refused."""

from typing import Any

import pytest

from justitia_ray.app_args import AppArgs, parse_app_args, parse_app_settings
from justitia_ray.config import parse_app_config
from justitia_ray.errors import ConfigError

_FAKE = {"kind": "fake", "fake": {"kv_tokens": 100}}


def entry(name: str, **more: Any) -> dict[str, Any]:
    """Return an entry of `models`."""
    return {"name": name, "path": "none", **more}


def several(*models: dict[str, Any], **sections: Any) -> AppArgs:
    """Parse the arguments of an application of these models."""
    return parse_app_args({"models": list(models), **sections})


def test_one_model_is_what_it_has_always_been() -> None:
    """Nobody who serves one model has anything to change: same names, same data."""
    values = {"name": "a", "model": entry("m"), "engine": _FAKE}
    (place,) = parse_app_args(values).each_model()

    assert ("Replica", "Predictor") == (place.replicas, place.predictor)
    assert parse_app_config(values) == place.config


def test_each_of_several_has_a_queue_and_deployments_of_its_own() -> None:
    """Schedulers, keys, data and deployments are told apart by the model's name."""
    first, second = several(entry("org/m"), entry("n"), name="a").each_model()

    assert ("Replica-org-m", "Predictor-org-m") == (first.replicas, first.predictor)
    assert ("Replica-n", "Predictor-n") == (second.replicas, second.predictor)
    assert ("scheduler/a/org/m", "a/org/m") == (
        first.config.scheduler_name,
        first.config.store_name,
    )
    assert first.config.data_dir != second.config.data_dir


def test_list_of_one_model_has_the_names_that_it_keeps_when_another_comes() -> None:
    """To add a model beside it must not restart the engines of the first."""
    (alone,) = several(entry("m")).each_model()
    beside, _ = several(entry("m"), entry("n")).each_model()

    assert alone == beside


def test_engine_of_an_entry_takes_the_place_of_the_shared_one() -> None:
    """Whole, not key by key: options of one engine mean nothing to another."""
    shared = {"vllm_args": {"dtype": "float32"}}
    models = (entry("m"), entry("n", engine=_FAKE, replica={"heartbeat_s": 2}))
    first, second = several(*models, engine=shared, replica={"pull_interval_s": 1}).each_model()

    assert ("vllm", {"dtype": "float32"}) == (
        first.config.engine.kind,
        first.config.engine.vllm_args,
    )
    assert ("fake", {}) == (second.config.engine.kind, second.config.engine.vllm_args)
    assert [(1.0, 1.0), (0.01, 2.0)] == [
        (place.config.replica.pull_interval_s, place.config.replica.heartbeat_s)
        for place in (first, second)
    ]


def test_arguments_survive_the_way_to_the_ingress() -> None:
    """They travel as a dict; what comes out there is what was checked here."""
    args = several(entry("m", adapters={"m-sql": "/sql"}), entry("n", engine=_FAKE), name="a")

    assert args == parse_app_args(args.model_dump())
    assert ("m", "m-sql") == args.each_model()[0].config.model.names


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, r"model, or models with at least one, is required \(neither is given\)"),
        ({"models": []}, r"neither is given"),
        ({"model": entry("m"), "models": [entry("n")]}, r"both are given"),
        ({"models": [entry("m"), entry("m")]}, r"'m' is a name of 'm' and of 'm'"),
        (
            {"models": [entry("m", adapters={"n": "/n"}), entry("n")]},
            r"'n' is a name of 'm' and of 'n': each name, of an adapter too, is allowed once",
        ),
        ({"model": entry("m", adapters={"m": "/m"})}, r"'m' is the model's own name"),
        (
            {"models": [entry("a/b"), entry("a:b")]},
            r"'a/b' and 'a:b' differ in punctuation only",
        ),
        ({"models": [entry("a/b"), entry("a_b")]}, r"'a/b' and 'a_b' differ in punctuation only"),
        ({"models": [entry("m" * 119)]}, r"is too long for a deployment: 118 characters"),
        ({"models": [entry("m", engin={})]}, r"models\.0\.engin: Extra inputs"),
    ],
)
def test_what_would_be_mixed_up_is_refused(values: dict[str, Any], message: str) -> None:
    """Two models of one name would share a queue; two of one deployment, their engines."""
    with pytest.raises(ConfigError, match=message):
        parse_app_args(values)


def test_settings_of_a_model_differ_in_the_keys_that_it_names() -> None:
    """The rest is shared, so that a change of it is made once."""
    values = {
        "policy_options": {"kv_share_cap": 0.5},
        "tenant_weights": {"t": 2},
        "models": {"m": {"admission": "prompt"}, "n": {"policy": "fcfs"}},
    }
    settings = parse_app_settings(values).each_model(("m", "n", "o"))

    assert ["justitia", "fcfs", "justitia"] == [settings[name].policy for name in ("m", "n", "o")]
    assert ["prompt", "peak", "peak"] == [settings[name].admission for name in ("m", "n", "o")]
    assert [{"t": 2.0}] * 3 == [settings[name].tenant_weights for name in ("m", "n", "o")]


def test_options_of_a_policy_do_not_go_to_another_one() -> None:
    """They mean nothing there: the model would be refused for what it did not say."""
    shared = {"policy_options": {"clock": "nominal"}}
    settings = parse_app_settings(shared | {"models": {"n": {"policy": "fcfs"}}})
    of_each = settings.each_model(("m", "n"))

    assert [{"clock": "nominal"}, {}] == [of_each[name].policy_options for name in ("m", "n")]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"p": {}}, r"models: there is no model 'p'; m, n are served"),
        ({"m": {"policy": "fifo"}}, r"models\.m: .*'fifo'"),
        ({"m": {"polcy": "fcfs"}}, r"models\.m: polcy: Extra inputs are not permitted"),
        ({"m": {"models": {}}}, r"models\.m: models: Extra inputs are not permitted"),
    ],
)
def test_wrong_settings_of_a_model_are_named_with_it(values: dict[str, Any], message: str) -> None:
    """Several stand in one file; the message leads to the line."""
    with pytest.raises(ConfigError, match=message):
        parse_app_settings({"models": values}).each_model(("m", "n"))
