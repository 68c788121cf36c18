"""Check a Serve configuration file against the schemas of Serve and of this package."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from ray.serve.schema import DeploymentSchema, ServeApplicationSchema, ServeDeploySchema

from justitia_ray.config import (
    AppArgs,
    AppConfig,
    AppSettings,
    AutoscalingSection,
    SchedulingConfig,
)
from justitia_ray.errors import ConfigError
from justitia_ray.serve.ops.engine_ranks import gpu_mistakes
from justitia_ray.yaml_text import read_yaml

IMPORT_PATH = "justitia_ray.serve.app:build"
_VALUE_CHARACTERS = 80

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class CheckedApplication:
    """An application of this package in a Serve configuration file."""

    serve_name: str
    """Name of the application in Ray Serve."""
    configs: tuple[AppConfig, ...]
    """Configuration of each model of the application."""
    scheduling: Mapping[str, SchedulingConfig]
    """Scheduling settings of each model, by the model's name."""


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """Result of checking a Serve configuration file: its applications and its mistakes."""

    applications: tuple[CheckedApplication, ...]
    errors: tuple[str, ...]
    """Error messages, one for each mistake: the key, what is wrong or allowed, and the value."""


def check_file(path: Path) -> CheckedFile:
    """Check a Serve configuration file; return its applications and mistakes.

    Raises:
        ConfigError: If the file cannot be read as YAML.
    """
    return check_values(read_mapping(path))


def read_applications(path: Path) -> tuple[CheckedApplication, ...]:
    """Return the applications of a valid Serve configuration file.

    Raises:
        ConfigError: If the file cannot be read, or has a mistake.
    """
    checked = check_file(path)
    if checked.errors:
        raise ConfigError(f"{path}: {checked.errors[0]}")
    return checked.applications


def most_callers(path: Path) -> int:
    """Return the maximum number of waiting callers at all ingresses of a file's applications.

    Raises:
        ConfigError: If the file cannot be read, or has a mistake.
    """
    outstanding = {
        application.serve_name: sum(c.ingress.max_outstanding for c in application.configs)
        for application in read_applications(path)
    }
    callers = 0
    for application in read_mapping(path)["applications"]:
        of_each = outstanding.get(application.get("name", "default"), 0)
        deployments = {d["name"]: d for d in application.get("deployments", [])}
        processes = deployments.get("Ingress", {}).get("num_replicas", 1)
        callers += of_each * (processes if isinstance(processes, int) else 1)
    return callers


def asks_for_tls(path: Path) -> bool:
    """Return whether a Serve configuration file configures TLS in Ray Serve.

    Raises:
        ConfigError: If the file cannot be read, or has a mistake.
    """
    read_applications(path)
    http_options = read_mapping(path).get("http_options") or {}
    return bool(http_options.get("ssl_certfile"))


def check_values(values: Mapping[str, Any]) -> CheckedFile:
    errors: list[str] = []
    if _validate(ServeDeploySchema, values, "", errors) is None:
        return CheckedFile((), tuple(errors))
    errors += _unknown_keys(ServeDeploySchema, values, "")
    found: list[CheckedApplication] = []
    for index, application in enumerate(values["applications"]):
        key = f"applications[{index}]."
        errors += _unknown_keys(ServeApplicationSchema, application, key)
        if application["import_path"] == IMPORT_PATH:
            checked = _check_application(application, key, errors)
            if checked is not None:
                found.append(checked)
    ours = [a for a in values["applications"] if a["import_path"] == IMPORT_PATH]
    if not ours:
        errors.append(f"applications: none has import_path {IMPORT_PATH}")
    errors += _shared_schedulers(found)
    return CheckedFile(tuple(found), tuple(errors))


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the values of a Serve configuration file, unchecked.

    Raises:
        ConfigError: If the file cannot be read or is not a YAML mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error
    values = read_yaml(text, str(path))
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a Serve configuration file is a mapping with `applications`")
    return values


def _check_application(
    application: Mapping[str, Any], key: str, errors: list[str]
) -> CheckedApplication | None:
    given = application.get("args", {})
    args = _validate(AppArgs, given, f"{key}args.", errors)
    placed = () if args is None else args.each_model()
    settings: AppSettings | None = AppSettings()
    settings_key = f"{key}user_config"
    allowed = ["Ingress", *(n for p in placed for n in (p.predictor, p.replicas))]
    if args is None and "models" not in given:
        allowed += ["Predictor", "Replica"]
    seen: set[str] = set()
    for index, deployment in enumerate(application.get("deployments", [])):
        inner = f"{key}deployments[{index}]."
        name, user_config = deployment["name"], deployment.get("user_config")
        if name in seen:
            errors.append(f"{inner}name: each deployment is allowed once (got {name!r})")
        seen.add(name)
        errors += _unknown_keys(DeploymentSchema, deployment, inner)
        if name == "Ingress":
            settings_key = f"{inner}user_config"
            settings = _validate(AppSettings, user_config or {}, f"{settings_key}.", errors)
        # The allowed names are uncertain if the settings are not valid.
        elif len(allowed) > 1 and name not in allowed:
            errors.append(f"{inner}name: one of {', '.join(allowed)} is allowed (got {name!r})")
        elif user_config is not None:
            errors.append(f"{inner}user_config: only Ingress takes one (got it for {name})")
        place = next((p for p in placed if p.replicas == name), None)
        if place is not None or name == "Replica":
            errors += _autoscaling_errors(deployment, inner)
        if place is not None:
            errors += _scaled_twice(deployment, inner, place.config.autoscaling)
            errors += gpu_mistakes(place.config.engine, deployment, inner)
    if args is not None:
        errors += _scaled_from_outside(application, key, args)
    if args is None or settings is None:
        return None
    try:
        scheduling = settings.each_model(args.model_names)
    except ConfigError as error:
        errors.append(f"{settings_key}.{error}")
        return None
    return CheckedApplication(
        application.get("name", "default"), tuple(place.config for place in placed), scheduling
    )


def _autoscaling_errors(deployment: Mapping[str, Any], key: str) -> Iterator[str]:
    """Yield an error if Ray Serve would scale engines by its own count of calls, which is wrong."""
    scaling = deployment.get("autoscaling_config")
    if deployment.get("num_replicas") == "auto" or (scaling and not scaling.get("policy")):
        yield (
            f"{key}autoscaling_config: needs a policy of its own, such as one by"
            " record_autoscaling_stats; Serve's counts the calls that it carries, and an"
            " engine's come by connections of ours"
        )


def _scaled_twice(
    deployment: Mapping[str, Any], key: str, scaling: AutoscalingSection | None
) -> Iterator[str]:
    """Yield errors for Serve settings that scale the engines beside the section `autoscaling`."""
    if scaling is None or scaling.external:
        return
    for name in ("num_replicas", "autoscaling_config"):
        if deployment.get(name) is not None:
            yield (
                f"{key}{name}: leave it out, for autoscaling in args says how many replicas"
                f" {deployment['name']} has (got {deployment[name]!r})"
            )


def _scaled_from_outside(application: Mapping[str, Any], key: str, args: AppArgs) -> Iterator[str]:
    """Yield an error if Serve's file and the arguments differ in who scales the engines."""
    sections = [place.config.autoscaling for place in args.each_model()]
    inside = [one for one in sections if one is not None and not one.external]
    outside = [one for one in sections if one is not None and one.external]
    is_enabled = bool(application.get("external_scaler_enabled"))
    if is_enabled and inside:
        yield (
            f"{key}external_scaler_enabled: Serve then scales nothing itself; put external: true"
            " into autoscaling, or leave it out"
        )
    if outside and not is_enabled:
        yield (
            f"{key}external_scaler_enabled: true is needed where autoscaling has external: true,"
            " for Serve to take numbers of replicas from outside"
        )


def _validate(model: type[Model], values: Any, key: str, errors: list[str]) -> Model | None:
    """Return values as a pydantic model; on failure append error messages and return None."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        errors += [_error_line(model, item, key) for item in error.errors(include_url=False)]
    except Exception as error:  # Serve's schema imports code, which may raise
        errors.append(f"{key.rstrip('.') or 'file'}: {type(error).__name__}: {error}")
    return None


def _error_line(model: type[BaseModel], item: Mapping[str, Any], key: str) -> str:
    place = item["loc"]
    name = key.rstrip(".") if not place else key + _dotted_path(place)
    if item["type"] == "extra_forbidden":
        return _unknown_key(name, _section_at(model, place[:-1]))
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "missing" or isinstance(item["input"], dict):
        return f"{name or 'file'}: {message}"
    value = repr(item["input"])
    shown = value if len(value) <= _VALUE_CHARACTERS else value[:_VALUE_CHARACTERS] + "…"
    return f"{name or 'file'}: {message} (got {shown})"


def _dotted_path(place: Sequence[int | str]) -> str:
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _unknown_key(name: str, section: type[BaseModel]) -> str:
    return f"{name}: unknown key; {', '.join(section.model_fields)} are allowed"


def _section_at(model: type[BaseModel], place: Sequence[int | str]) -> type[BaseModel]:
    """Return the section of the configuration at `place`, a path of keys and list positions."""
    for part in place:
        field = model.model_fields.get(str(part))
        if field is not None:
            model = _section_of(field.annotation) or model
    return model


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section class in a field's type, also as an element; None without one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section_of, get_args(annotation))), None)


def _unknown_keys(model: type[BaseModel], values: Mapping[str, Any], key: str) -> Iterator[str]:
    """Yield an error message for each key that Ray Serve would silently ignore."""
    for name, value in values.items():
        field = model.model_fields.get(name)
        if field is None:
            yield _unknown_key(f"{key}{name}", model)
            continue
        section = _section_of(field.annotation)
        if section is None or section.model_config.get("extra") == "forbid":
            continue  # `_validate` reports unknown keys itself in sections that forbid them.
        if isinstance(value, dict):
            yield from _unknown_keys(section, value, f"{key}{name}.")


def _shared_schedulers(applications: Sequence[CheckedApplication]) -> Iterator[str]:
    seen: dict[tuple[str, str], str] = {}
    for application in applications:
        for config in application.configs:
            owner = seen.setdefault(
                (config.scheduler.namespace, config.scheduler_name), application.serve_name
            )
            if owner != application.serve_name:
                yield (
                    f"applications: {owner!r} and {application.serve_name!r} have the same"
                    f" args.name and a model of the same name (got {config.store_name!r}): they"
                    " would share a scheduler; give one of them another name"
                )
