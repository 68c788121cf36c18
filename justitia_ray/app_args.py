"""An application's arguments: one model or several, each with a queue, a policy and replicas.

`AppArgs` is what `justitia_ray.serve.app:build` takes, `AppSettings` the `user_config` of its
Ingress. Both come apart into what each model goes by, so that nothing below the ingress knows how
many there are.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, model_validator

from justitia_ray.config import (
    AppConfig,
    EngineSection,
    ModelSection,
    ReplicaSection,
    SchedulingConfig,
    SharedSections,
)
from justitia_ray.config.complaints import checked
from justitia_ray.errors import ConfigError, shown_short

_NOT_IN_DEPLOYMENTS = re.compile(r"[^A-Za-z0-9._-]")
"""Serve takes `#` for a separator, and makes names of log files from names of deployments."""
_LONGEST_DEPLOYMENT = 128
"""A file's name has 255 characters, the application's name and the replica's id among them."""


class ModelEntry(ModelSection):
    """One of several models."""

    engine: EngineSection | None = None
    """None: the application's."""
    replica: ReplicaSection | None = None
    """None: the application's."""


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """One model, and the deployments that serve it."""

    config: AppConfig
    replicas: str
    """Name of the deployment of its engines."""
    predictor: str
    """Name of the deployment of its predictor."""


class AppArgs(SharedSections):
    """Arguments of `justitia_ray.serve.app:build`: `model`, or `models`."""

    model: ModelSection | None = None
    """The only model; `engine` and `replica` are its own."""
    models: tuple[ModelEntry, ...] = ()
    """Several. The deployments of each have its name: one may be added beside the others."""

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names of the models, without those of their adapters."""
        return tuple(model.name for model in self._all())

    def each_model(self) -> tuple[PlacedModel, ...]:
        """Return what each model goes by, in the order of the arguments."""
        shared = {name: getattr(self, name) for name in SharedSections.model_fields}
        if self.model is not None:
            only = AppConfig(**shared, model=self.model)
            return (PlacedModel(only, "Replica", "Predictor"),)
        placed = []
        for entry in self.models:
            own = {
                "model": ModelSection(**entry.model_dump(include=set(ModelSection.model_fields))),
                "engine": entry.engine or self.engine,
                "replica": entry.replica or self.replica,
            }
            suffix = _suffix(entry.name)
            config = AppConfig(**(shared | own))
            placed.append(PlacedModel(config, f"Replica-{suffix}", f"Predictor-{suffix}"))
        return tuple(placed)

    def _all(self) -> Sequence[ModelSection]:
        return self.models if self.model is None else (self.model,)

    @model_validator(mode="after")
    def _models_are_told_apart(self) -> "AppArgs":
        if (self.model is None) == (not self.models):
            given = "both are given" if self.models else "neither is given"
            raise ValueError(f"model, or models with at least one, is required ({given})")
        owners: dict[str, str] = {}
        alike: dict[str, str] = {}
        for model in self._all():
            for name in model.names:
                if name in owners:
                    raise ValueError(
                        f"models: {name!r} is a name of {owners[name]!r} and of {model.name!r}:"
                        " each name, of an adapter too, is allowed once"
                    )
                owners[name] = model.name
            suffix = _suffix(model.name)
            other = alike.setdefault(suffix.replace("_", "-"), model.name)
            if other != model.name:
                raise ValueError(
                    f"models: {other!r} and {model.name!r} differ in punctuation only, which names"
                    " of deployments and directories leave out: give one of them another name"
                )
            if self.models and len(f"Predictor-{suffix}") > _LONGEST_DEPLOYMENT:
                raise ValueError(
                    f"models: the name {shown_short(model.name)} is too long for a deployment:"
                    f" {_LONGEST_DEPLOYMENT - len('Predictor-')} characters are allowed"
                )
        return self


class AppSettings(SchedulingConfig):
    """`user_config` of the Ingress deployment: for all models, and what is different for some."""

    models: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """By a model's name: the keys in which it differs. One that names another `policy` has none of
    the other `policy_options`, which are those of a policy."""

    def each_model(self, names: Sequence[str]) -> dict[str, SchedulingConfig]:
        """Return the settings of each of these models.

        Raises:
            ConfigError: If there are settings for another model, or some are not allowed.
        """
        for name in self.models:
            if name not in names:
                raise ConfigError(
                    f"models: there is no model {shown_short(name)}; {', '.join(names)}"
                    f" {'are' if len(names) > 1 else 'is'} served"
                )
        return {name: self._of_model(name) for name in names}

    def _of_model(self, name: str) -> SchedulingConfig:
        own = self.models.get(name, {})
        shared = self.model_dump(include=set(SchedulingConfig.model_fields))
        if own.get("policy", self.policy) != self.policy:
            shared["policy_options"] = {}
        return checked(SchedulingConfig, shared | own, f"models.{name}: ")


def parse_app_args(values: dict[str, Any]) -> AppArgs:
    """Check an application's arguments.

    Raises:
        ConfigError: If a key is unknown or a value is not allowed; names every one of them.
    """
    return checked(AppArgs, values)


def parse_app_settings(values: dict[str, Any]) -> AppSettings:
    """Check the Ingress deployment's `user_config`, as far as that is possible without its models.

    Raises:
        ConfigError: If a key is unknown or a value is not allowed; names every one of them.
    """
    return checked(AppSettings, values)


def _suffix(name: str) -> str:
    return _NOT_IN_DEPLOYMENTS.sub("-", name)
