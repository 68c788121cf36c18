"""`justitia check-config`: every error of a file on one line, before the deployment."""

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from justitia_ray.cli.main import main
from justitia_ray.serve.engines import argument_checks
from justitia_ray.serve.ops.config_file import read_applications

SHIPPED = sorted((Path(__file__).parents[3] / "deployments").glob("*.yaml"))
assert SHIPPED, "no case would look at the files that users begin with"
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


@pytest.fixture(autouse=True)
def parser_errors(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Replace vLLM's argument parser; return its errors by model, which the test fills in."""
    said: dict[str, str] = {}
    monkeypatch.setattr(argument_checks, "parser_mistakes", lambda configs: said)
    return said


def check_file(
    values: Any, directory: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, list[str]]:
    """Run `check-config` on a file with these values; return its exit status and error lines."""
    file = directory / "serve.yaml"
    file.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
    status = main(["check-config", str(file)])
    lines = capsys.readouterr().err.splitlines()
    return status, [line.removeprefix(f"{file}: ") for line in lines]


@pytest.mark.parametrize("file", SHIPPED, ids=[file.name for file in SHIPPED])
def test_shipped_configuration_is_valid(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Users start from these files and find the scheduler by Serve's application name."""
    assert 0 == main(["check-config", str(file)])
    assert "application 'justitia' is fine" in capsys.readouterr().out
    (application,) = read_applications(file)
    assert {"justitia"} == {config.name for config in application.configs}


def test_each_configuration_error_names_key_value_and_allowed_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator fixes all errors at once without reading the schema."""
    values = deepcopy(FILE)
    application = values["applications"][0]
    application["args"]["ingress"] = {"attempts": 0, "keepalives": 3}
    application["args"]["store"] = {"redis_url": "redis://:secret@host:6379/0"}
    application["deployments"][0]["user_config"] = {"policy": "fifo"}
    application["deployments"].append({"name": "Replicas", "num_replicas": 2})
    status, errors = check_file(values, tmp_path, capsys)

    assert 2 == status
    found = {error.split(": ")[0]: error for error in errors}
    assert {
        "applications[0].args.ingress.attempts",
        "applications[0].args.ingress.keepalives",
        "applications[0].args.store",
        "applications[0].deployments[0].user_config",
        "applications[0].deployments[1].name",
    } == found.keys()
    assert "redis_password_env" in found["applications[0].args.store"]
    assert "secret" not in "".join(errors)  # a pipeline may log the output
    assert "greater than 0 (got 0)" in found["applications[0].args.ingress.attempts"]
    assert "keepalive_s" in found["applications[0].args.ingress.keepalives"]
    assert "justitia, fcfs" in found["applications[0].deployments[0].user_config"]
    assert "Ingress, Predictor, Replica" in found["applications[0].deployments[1].name"]


def application_settings(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = deepcopy(FILE["applications"][0])
    return values | changes


OTHER = application_settings(
    name="other", route_prefix="/other", args={"model": {"name": "n", "path": "none"}}
)


def file_of_two_models(**user_config: Any) -> dict[str, Any]:
    """Return a configuration file with an application of two models."""
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


@pytest.mark.parametrize(
    ("values", "said"),
    [
        pytest.param(
            {
                "applications": [
                    application_settings(deployments=[{"name": "Ingress", "num_replica": 4}])
                ]
            },
            r"applications\[0\]\.deployments\[0\]\.num_replica: unknown key.*num_replicas",
            id="Serve passes over unknown keys: a slip would keep a default",
        ),
        *(
            pytest.param(
                {
                    "applications": [
                        application_settings(deployments=[{"name": "Predictor", **slip}])
                    ]
                },
                rf"^applications\[0\]\.deployments\[0\]\.{said}",
                id=f"a slip in a section of Serve: {said}",
            )
            for slip, said in (
                ({"ray_actor_options": {"num_gpu": 1}}, r"ray_actor_options\.num_gpu: .*num_gpus"),
                ({"logging_config": {"levl": "INFO"}}, r"logging_config\.levl: .*log_level"),
            )
        ),
        pytest.param(
            {
                "applications": [
                    application_settings(
                        deployments=[
                            {
                                "name": "Replica",
                                "autoscaling_config": {"policy": {"policy_function": "nowhere:f"}},
                            }
                        ]
                    )
                ]
            },
            "^file: ModuleNotFoundError: No module named 'nowhere'$",
            id="Serve's schema imports a policy for replicas",
        ),
        pytest.param(
            {"http_options": {"request_timeout": 9}, "applications": [application_settings()]},
            r"^http_options\.request_timeout: unknown key; .*request_timeout_s",
            id="a slip in the options of HTTP",
        ),
        pytest.param(
            {
                "applications": [
                    application_settings(
                        args=FILE["applications"][0]["args"]
                        | {"recognition": {"headers": [{"name": "a", "header": "x-id"}]}}
                    )
                ]
            },
            r"recognition\.headers\[0\]\.header: unknown key; name,",
            id="a slip in a list of sections",
        ),
        pytest.param(
            {
                "applications": [
                    application_settings(
                        deployments=[
                            {"name": "Ingress", "user_config": {"policy": "fcfs"}},
                            {"name": "Ingress"},
                        ]
                    )
                ]
            },
            r"deployments\[1\]\.name: each deployment is allowed once \(got 'Ingress'\)$",
            id="Serve takes the last of two deployments of one name",
        ),
        pytest.param(
            {
                "applications": [
                    application_settings(
                        deployments=[{"name": "Replica", "user_config": {"policy": "fcfs"}}]
                    )
                ]
            },
            r"applications\[0\]\.deployments\[0\]\.user_config: only Ingress takes one \(got it for"
            r" Replica\)$",
            id="only Ingress takes settings while it runs",
        ),
        *(
            pytest.param(
                {
                    "applications": [
                        application_settings(deployments=[{"name": "Replica", **scaled}])
                    ]
                },
                r"applications\[0\]\.deployments\[0\]\.autoscaling_config: needs a policy",
                id=f"Serve does not see the calls of an engine: {scaled}",
            )
            for scaled in ({"autoscaling_config": {"max_replicas": 3}}, {"num_replicas": "auto"})
        ),
        pytest.param(
            {
                "applications": [
                    application_settings(),
                    application_settings(name="other", route_prefix="/other"),
                ]
            },
            "applications: 'justitia' and 'other' have the same args.name",
            id="two queues under one name would be one queue",
        ),
        pytest.param(
            {"applications": [*file_of_two_models()["applications"], OTHER]},
            "'justitia' and 'other' have the same args.name and a model of the same name",
            id="of several models of two applications one is the same",
        ),
        pytest.param(
            {"applications": [application_settings(import_path="justitia_ray.serve.apps:build")]},
            "applications: none has import_path justitia_ray.serve.app:build$",
            id="a slip in import_path is no file with nothing to check",
        ),
        ("applications: [", "is not YAML"),
        ("- a list", "is a mapping with `applications`"),
        ("http_options: {port: 8000}", "applications: Field required"),
        ("applications: [1]", r"applications\[0\]: "),
    ],
)
def test_error_that_ray_serve_would_miss_is_reported(
    values: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray Serve would fail minutes later, or do something unintended."""
    status, errors = check_file(values, tmp_path, capsys)

    assert 2 == status
    assert 1 == len(errors)
    assert re.search(said, errors[0])


RAY = {"distributed_executor_backend": "ray"}
ONE = {"GPU": 1}


def file_of_a_vllm_engine(vllm_args: dict[str, Any], **deployment: Any) -> dict[str, Any]:
    """Return a configuration file of a vLLM engine with these options and deployment settings."""
    args = {
        "model": {"name": "large", "path": "org/large"},
        "engine": {"kind": "vllm", "vllm_args": vllm_args},
    }
    replica = {"name": "Replica", **deployment}
    return {"applications": [application_settings(args=args, deployments=[replica])]}


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(
            file_of_a_vllm_engine({}, ray_actor_options={"num_gpus": 1}), id="one rank, one GPU"
        ),
        pytest.param(
            file_of_a_vllm_engine({}, ray_actor_options={"num_gpus": 0.5}), id="a part of a GPU"
        ),
        pytest.param(file_of_a_vllm_engine({"tensor_parallel_size": 2}), id="two ranks on CPUs"),
        pytest.param(
            file_of_a_vllm_engine({"tensor-parallel-size": 4}, ray_actor_options={"num_gpus": 4}),
            id="processes beside the engine's",
        ),
        pytest.param(
            file_of_a_vllm_engine(
                RAY | {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
                ray_actor_options={"num_cpus": 2},
                placement_group_bundles=[{"CPU": 2, "GPU": 1}, ONE, ONE, ONE],
            ),
            id="actors in bundles",
        ),
    ],
)
def test_one_gpu_per_tensor_parallel_rank_is_valid(
    values: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A deployment may give the ranks their GPUs in either of vLLM's two ways."""
    assert (0, []) == check_file(values, tmp_path, capsys)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        pytest.param(
            file_of_a_vllm_engine({"tensor_parallel_size": 4}, ray_actor_options={"num_gpus": 1}),
            r"ray_actor_options\.num_gpus: 4 is allowed, one for each rank .* is 4\); got 1",
            id="fewer GPUs than ranks",
        ),
        pytest.param(
            file_of_a_vllm_engine({}, ray_actor_options={"num_gpus": 2}),
            r"ray_actor_options\.num_gpus: 1 is allowed",
            id="a GPU that no rank uses",
        ),
        pytest.param(
            file_of_a_vllm_engine({"tensor_parallel_size": 2}, placement_group_bundles=[ONE, ONE]),
            r"placement_group_bundles: .*vllm_args needs distributed_executor_backend: ray",
            id="processes reach no bundle",
        ),
        pytest.param(
            file_of_a_vllm_engine(
                RAY | {"tensor_parallel_size": 2},
                ray_actor_options={"num_gpus": 1},
                placement_group_bundles=[ONE, ONE],
            ),
            r"ray_actor_options\.num_gpus: 0 is allowed with distributed_executor_backend: ray",
            id="the replica takes the GPU of a rank",
        ),
        pytest.param(
            file_of_a_vllm_engine(
                RAY | {"tensor_parallel_size": 2}, placement_group_bundles=[{"GPU": 2}]
            ),
            r"placement_group_bundles\[0\]\.GPU: 1 is allowed",
            id="vLLM refuses a bundle of two",
        ),
        pytest.param(
            file_of_a_vllm_engine(
                RAY | {"pipeline_parallel_size": 3}, placement_group_bundles=[ONE, ONE]
            ),
            r"placement_group_bundles: 3 with a GPU are needed, one for each rank .*; got 2",
            id="fewer bundles than ranks",
        ),
    ],
)
def test_tensor_parallel_ranks_without_a_gpu_are_reported(
    values: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray would keep the ranks pending and the application in the state DEPLOYING forever."""
    status, errors = check_file(values, tmp_path, capsys)

    assert 2 == status
    assert 1 == len(errors)
    assert re.search(r"applications\[0\]\.deployments\[0\]\." + said, errors[0])


def test_models_are_listed_with_their_policies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model's policy is set in the section of the model or that of the application."""
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump(file_of_two_models(models={"n": {"policy": "fcfs"}})))

    assert 0 == main(["check-config", str(file)])
    assert capsys.readouterr().out.endswith(
        "is fine: model org/m, policy justitia, model n, policy fcfs\n"
    )


def test_moved_option_is_valid_and_prints_its_new_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = {"policy": "justitia", "policy_options": {"order": "sgps", "guard_iterations": 300}}
    status, said = check_file(file_of_two_models(models={"n": moved}), tmp_path, capsys)

    assert 0 == status
    assert [
        "model 'n': policy: order and guard_iterations moved: use policy: justitia-guarded"
    ] == said


def test_errors_in_several_models_are_all_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray Serve would ignore settings for a deployment that does not exist."""
    values = file_of_two_models(models={"x": {"policy": "fcfs"}})
    values["applications"][0]["deployments"].append({"name": "Replica"})
    status, errors = check_file(values, tmp_path, capsys)

    assert 2 == status
    assert [
        "applications[0].deployments[3].name: one of Ingress, Predictor-org-m, Replica-org-m,"
        " Predictor-n, Replica-n is allowed (got 'Replica')",
        "applications[0].deployments[0].user_config.models: there is no model 'x'; org/m, n are"
        " served",
    ] == errors


@pytest.mark.parametrize(
    ("autoscaling", "deployment", "application", "said"),
    [
        pytest.param(
            {"max_replicas": 4},
            {"num_replicas": 2},
            {},
            "applications[0].deployments[1].num_replicas: leave it out, for autoscaling in args"
            " says how many replicas Replica has (got 2)",
            id="a number beside autoscaling",
        ),
        pytest.param(
            {"max_replicas": 4},
            {},
            {"external_scaler_enabled": True},
            "applications[0].external_scaler_enabled: Serve then scales nothing itself; put"
            " external: true into autoscaling, or leave it out",
            id="Serve's policy beside another scaler",
        ),
        pytest.param(
            {"max_replicas": 4, "external": True},
            {"num_replicas": 1},
            {},
            "applications[0].external_scaler_enabled: true is needed where autoscaling has"
            " external: true, for Serve to take numbers of replicas from outside",
            id="another scaler that Serve would refuse",
        ),
    ],
)
def test_two_settings_for_the_replica_count_are_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    autoscaling: dict[str, Any],
    deployment: dict[str, Any],
    application: dict[str, Any],
    said: str,
) -> None:
    values = deepcopy(FILE)
    values["applications"][0] |= application
    values["applications"][0]["args"]["autoscaling"] = autoscaling
    values["applications"][0]["deployments"].append({"name": "Replica", **deployment})

    assert (2, [said]) == check_file(values, tmp_path, capsys)


@pytest.mark.parametrize("is_external", [True, False])
def test_single_setting_for_the_replica_count_is_valid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_external: bool
) -> None:
    """With an external autoscaler the setting is the initial number of replicas."""
    values = deepcopy(FILE)
    values["applications"][0]["args"]["autoscaling"] = {"max_replicas": 4, "external": is_external}
    if is_external:
        values["applications"][0]["external_scaler_enabled"] = True
        values["applications"][0]["deployments"].append({"name": "Replica", "num_replicas": 1})

    assert (0, []) == check_file(values, tmp_path, capsys)


def file_of_vllm_options(**engine: Any) -> dict[str, Any]:
    values = deepcopy(FILE)
    values["applications"][0]["args"]["engine"] = engine
    return values


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({"vllm_args": {"api_key": "s"}}, r"engine\.vllm_args: 'api_key' cannot be set here: call"),
        ({"vllm_args": {"root-path": "/l"}}, r"vllm_args: 'root-path' cannot be set here: vLLM's"),
        ({"env": {"VLLM_API_KEY": "s"}}, r"engine\.env: VLLM_API_KEY cannot be set here: callers"),
        (
            {"vllm_args": {"max_model_len": "lots"}},
            r"args\.engine: vllm_args: max_model_len is 'lots'",
        ),
    ],
)
def test_vllm_option_that_would_break_the_service_is_refused(
    engine: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With vLLM's option for API keys the service would answer 401 to every call."""
    status, (error,) = check_file(file_of_vllm_options(**engine), tmp_path, capsys)

    assert 2 == status
    assert re.search(said, error)


def test_error_of_vllms_parser_is_reported(
    parser_errors: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser_errors["m"] = "engine.vllm_args: vLLM says: unrecognized arguments: --max-modle-len=4"
    values = file_of_vllm_options(vllm_args={"max_modle_len": 4})

    assert (2, [f"application 'justitia', model 'm': {parser_errors['m']}"]) == check_file(
        values, tmp_path, capsys
    )
    file = tmp_path / "serve.yaml"
    assert 0 == main(["check-config", "--without-vllm", str(file)])


def test_missing_vllm_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without vLLM a misspelt engine option is found only when the engine starts."""
    monkeypatch.setattr(argument_checks, "parser_mistakes", lambda configs: None)
    status, errors = check_file(file_of_vllm_options(), tmp_path, capsys)

    assert (0, ["vLLM is not installed here: its parser has not seen vllm_args"]) == (
        status,
        errors,
    )
