"""One schema for one YAML: what is wrong in it is named, with its value and what is allowed."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from justitia_ray.app_args import parse_app_args, parse_app_settings
from justitia_ray.config import AppConfig, parse_app_config, parse_scheduling_config
from justitia_ray.errors import ConfigError

_MODEL = {"name": "m", "path": "none"}
_DEPLOYMENTS = sorted((Path(__file__).parents[2] / "deployments").glob("*.yaml"))


def config(**sections: Any) -> AppConfig:
    """Parse a configuration with these sections."""
    return parse_app_config({"model": _MODEL, **sections})


def test_model_is_all_that_must_be_given() -> None:
    """Everything else has a default with a reason."""
    assert ("justitia", "vllm") == (config().name, config().engine.kind)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"modle": {}}, r"modle: Extra inputs are not permitted"),
        ({"engine": {"kind": "tgi"}}, r"engine\.kind: .*'vllm' or 'fake' \(got 'tgi'\)"),
        ({"engine": {"fake": {"kv_tokens": 0}}}, r"engine\.fake\.kv_tokens: .*greater than 0.*0"),
        ({"replica": {"heartbeat_s": -1}}, r"replica\.heartbeat_s: .*greater than 0 \(got -1\)"),
        ({"scheduler": {"lease_timeout_s": "soon"}}, r"scheduler\.lease_timeout_s: .*'soon'"),
        ({"scheduler": {"recovery_s": float("inf")}}, r"scheduler\.recovery_s: .*finite.*inf"),
        ({"scheduler": {"namespace": "a b"}}, r"scheduler\.namespace: .*pattern.*'a b'"),
        ({"store": {"redis_url": "http://h"}}, r"redis_url cannot be read .*redis://host:port/db"),
        (
            {"store": {"durability": "none", "redis_url": "redis://h"}},
            r"store: .*durability is none: no redis_url is allowed",
        ),
        ({"store": {"durability": "some"}}, r"store\.durability: .*'batched', 'strict' or 'none'"),
        ({"store": {"redis_username": "u"}}, r"redis_username is for a redis_url; none is given"),
        (
            {"store": {"redis_url": "redis://h", "redis_tls_ca_file": "ca.pem"}},
            r"redis_tls_ca_file is for a redis_url with TLS: rediss://",
        ),
        (
            {"store": {"redis_url": "rediss://h", "redis_tls_key_file": "k.pem"}},
            r"redis_tls_key_file is the key of redis_tls_cert_file",
        ),
        (
            {"store": {"redis_url": "redis://h", "redis_sentinel_password_env": "X"}},
            r"redis_sentinel_password_env is for a redis_url that begins with redis\+sentinel://",
        ),
        ({"ingress": {"attempts": 1.5}}, r"ingress\.attempts: .*integer.*1\.5"),
        ({"name": ""}, r"name: .*pattern.*''"),
    ],
)
def test_mistake_is_named_with_key_value_and_what_is_allowed(
    sections: dict[str, Any], message: str
) -> None:
    """A deployment that fails after minutes of loading a model must say why in one line."""
    with pytest.raises(ConfigError, match=message):
        config(**sections)


def test_every_mistake_is_named_at_once() -> None:
    """One deployment for each of them would take an hour."""
    with pytest.raises(ConfigError, match=r"engine\.kind: .*; replica\.heartbeat_s: "):
        config(engine={"kind": "tgi"}, replica={"heartbeat_s": 0})


def test_password_is_never_part_of_the_url_nor_of_the_message() -> None:
    """Configurations are logged, and saved with every result."""
    with pytest.raises(ConfigError, match="redis_password_env") as refused:
        config(store={"redis_url": "redis://:secret@host:6379"})

    assert "secret" not in str(refused.value)


def test_names_in_ray_and_redis_follow_from_application_and_model() -> None:
    """Two applications, or two models of one, share nothing."""
    named = config(name="shop", model={"name": "org/big-1", "path": "x"}, store={"data_dir": "d"})

    assert "scheduler/shop/org/big-1" == named.scheduler_name
    assert "shop/org/big-1" == named.store_name
    assert Path("d/shop_org_big-1") == named.data_dir


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "random"}, r"policy: 'random' is not one of justitia, fcfs"),
        ({"admission": "guess"}, r"admission: 'guess' is not one of peak, prompt"),
        ({"policy_options": {"clok": 1}}, r"policy_options: 'clok' is not one of clock"),
        ({"policy_options": {"clock": "wall"}}, r"policy_options\.clock: 'wall' is not one of"),
        ({"tenant_weights": {"t": 0}}, r"tenant_weights\.t: .*greater than 0 \(got 0\)"),
        ({"polcy": "fcfs"}, r"polcy: Extra inputs are not permitted"),
    ],
)
def test_setting_that_is_not_allowed_is_named(settings: dict[str, Any], message: str) -> None:
    """It is given to an application that runs, by somebody in a hurry."""
    with pytest.raises(ConfigError, match=message):
        parse_scheduling_config(settings)


@pytest.mark.parametrize("path", _DEPLOYMENTS, ids=lambda path: path.name)
def test_shipped_configuration_is_one_that_we_accept(path: Path) -> None:
    """People start from these files."""
    for application in yaml.safe_load(path.read_text())["applications"]:
        parsed = parse_app_args(application["args"])
        settings = {d["name"]: d.get("user_config") for d in application["deployments"]}
        placed = parsed.each_model()

        assert "justitia_ray.serve.app:build" == application["import_path"]
        of_models = {name for place in placed for name in (place.predictor, place.replicas)}
        assert {"Ingress", *of_models} >= set(settings)
        parse_app_settings(settings["Ingress"] or {}).each_model(parsed.model_names)
        # Serve's name routes, ours names the scheduler; people look for one in the other.
        assert application["name"] == parsed.name


@pytest.mark.parametrize("path", _DEPLOYMENTS, ids=lambda path: path.name)
def test_shipped_configuration_is_one_that_serve_accepts(path: Path) -> None:
    """`serve deploy` checks it before anything of ours runs."""
    from ray.serve.schema import ServeDeploySchema

    ServeDeploySchema.model_validate(yaml.safe_load(path.read_text()))


def test_there_are_shipped_configurations() -> None:
    """The tests above would pass on none."""
    assert {"local-fake.yaml", "local-cpu.yaml"} <= {path.name for path in _DEPLOYMENTS}
