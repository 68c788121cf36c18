"""The Serve `args` of an application: all its sections, for one model or for several."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from justitia_ray.config.callers import AccessSection, RecognitionSection
from justitia_ray.config.engine import (
    AutoscalingSection,
    EngineSection,
    ModelSection,
    ReplicaSection,
)
from justitia_ray.config.schema import Name, Section
from justitia_ray.config.service import (
    LONG_POLL_S,
    IngressSection,
    MetricsSection,
    PredictionSection,
    SchedulerSection,
    StoreSection,
    TracingSection,
    TransportSection,
)
from justitia_ray.cost import PrefillCost
from justitia_ray.errors import shown_short

_NOT_IN_DEPLOYMENTS = re.compile(r"[^A-Za-z0-9._-]")
"""Characters that are not allowed in deployment names: Serve uses `#` as a separator, and names log
files after deployments."""
_LONGEST_DEPLOYMENT = 128
"""Maximum length of deployment names: the name of a log file has at most 255 characters, and
includes the application's name and the replica's id."""


class SharedSections(Section):
    """Settings that all models of an application share."""

    name: Name = "justitia"
    """Name of the service, and part of its scheduler's name, of the keys in Redis and of the data
    directory. 1 to 64 of `A-Z a-z 0-9 . _ -`.
    """
    log_encoding: Literal["TEXT", "JSON"] | None = None
    """Log format of the Ingress, the Predictor and the replicas: `TEXT` or `JSON`. `null`: Serve's
    default; a `logging_config` of the Serve application then applies only to the Ingress, because
    the others have their own, without an access log. The scheduler always writes JSON lines, to its
    worker's log."""
    engine: EngineSection = EngineSection()
    replica: ReplicaSection = ReplicaSection()
    autoscaling: AutoscalingSection | None = None
    """Autoscaling of each model. `null`: the deployment's `num_replicas`."""
    scheduler: SchedulerSection = SchedulerSection()
    store: StoreSection = StoreSection()
    prediction: PredictionSection = PredictionSection()
    ingress: IngressSection = IngressSection()
    metrics: MetricsSection = MetricsSection()
    tracing: TracingSection = TracingSection()
    transport: TransportSection = TransportSection()
    recognition: RecognitionSection = RecognitionSection()
    access: AccessSection | None = None
    """Credentials of callers. `null`: all calls are allowed, for the tenant that the call names."""

    @model_validator(mode="after")
    def _key_storage_is_configured(self) -> Self:
        if self.access is not None and self.access.keys_in_redis and self.store.redis_url is None:
            raise ValueError("access.keys_in_redis is for a store.redis_url; none is given")
        return self

    @model_validator(mode="after")
    def _reports_precede_lease_timeouts(self) -> Self:
        self._check_report_interval("replica", self.replica)
        return self

    def _check_report_interval(self, where: str, replica: ReplicaSection) -> None:
        most_s = self.scheduler.lease_timeout_s / 2
        if replica.report_interval_s > most_s:
            raise ValueError(
                f"{where}.report_interval_s is {replica.report_interval_s:g}: at most half of"
                f" scheduler.lease_timeout_s, {most_s:g}, is allowed, for a lease that runs has to"
                " be reported before it expires"
            )


class AppConfig(SharedSections):
    """Settings of one model with its queue; the arguments of an application with one model."""

    model: ModelSection

    @property
    def scheduler_name(self) -> str:
        """Name of the scheduler actor, one for each model of an application."""
        return f"scheduler/{self.name}/{self.model.name}"

    @property
    def prefill_cost(self) -> PrefillCost | None:
        """Configured cost of computing prompts; None if no cost is configured."""
        given = self.engine.prefill_cost
        if self.scheduler.cost == "kv_token_time" or given is None:
            return None
        return PrefillCost(given.per_token, given.per_pair)

    @property
    def measures_prefill(self) -> bool:
        """Whether replicas measure the cost of computing prompts."""
        return self.scheduler.cost == "with_prefill" and self.engine.prefill_cost is None

    @property
    def store_name(self) -> str:
        """Prefix of the keys in Redis."""
        return f"{self.name}/{self.model.name}"

    @property
    def data_dir(self) -> Path:
        """Directory of the embedded Redis of this application and model."""
        flat = self.store_name.replace("/", "_")
        return Path(self.store.data_dir).expanduser() / flat

    @property
    def accounts_dir(self) -> Path:
        """Directory of the embedded Redis that stores the usage counted by quotas."""
        return Path(self.store.data_dir).expanduser() / f"{self.name}__accounts"


class ModelEntry(ModelSection):
    """Settings of one of several models: an entry of the argument `models`."""

    engine: EngineSection | None = None
    """Engine of this model; `null`: the application's."""
    replica: ReplicaSection | None = None
    """Replica settings of this model; `null`: the application's."""
    autoscaling: AutoscalingSection | None = None
    """Autoscaling of this model; `null`: the application's."""


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """A model with the names of the deployments that serve it."""

    config: AppConfig
    replicas: str
    """Name of the deployment of the model's engines."""
    predictor: str
    """Name of the deployment of the model's predictor."""


class AppArgs(SharedSections):
    """Arguments of the Serve application `justitia_ray.serve.app:build`."""

    model: ModelSection | None = None
    models: tuple[ModelEntry, ...] = ()
    """Several models with their settings, instead of `model`; see below."""

    @model_validator(mode="after")
    def _waiting_callers_are_not_given_up(self) -> "AppArgs":
        most_s = self.scheduler.replica_timeout_s / 2
        own = [(f"models: {one.name}: replica", one.replica) for one in self.models]
        for where, replica in [("replica", self.replica), *own]:
            if replica is not None and replica.heartbeat_s > most_s:
                raise ValueError(
                    f"{where}.heartbeat_s is {replica.heartbeat_s:g}: at most half of"
                    f" scheduler.replica_timeout_s, {most_s:g}, is allowed, for a replica that"
                    " waits for work is silent for so long"
                )
        if self.scheduler.ingress_timeout_s <= LONG_POLL_S:
            raise ValueError(
                f"scheduler.ingress_timeout_s is {self.scheduler.ingress_timeout_s:g}: above"
                f" {LONG_POLL_S:g} is allowed, for an ingress that waits for leases is silent for"
                " so long"
            )
        return self

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names of the models, without the names of adapters."""
        return tuple(model.name for model in self._model_sections())

    def each_model(self) -> tuple[PlacedModel, ...]:
        """Return the settings and deployments of each model, in the order of the arguments."""
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
                "autoscaling": entry.autoscaling or self.autoscaling,
            }
            suffix = _deployment_suffix(entry.name)
            config = AppConfig(**(shared | own))
            placed.append(PlacedModel(config, f"Replica-{suffix}", f"Predictor-{suffix}"))
        return tuple(placed)

    def _model_sections(self) -> Sequence[ModelSection]:
        return self.models if self.model is None else (self.model,)

    @model_validator(mode="after")
    def _model_names_differ(self) -> "AppArgs":
        if (self.model is None) == (not self.models):
            given = "both are given" if self.models else "neither is given"
            raise ValueError(f"model, or models with at least one, is required ({given})")
        owners: dict[str, str] = {}
        alike: dict[str, str] = {}
        for model in self._model_sections():
            if isinstance(model, ModelEntry) and model.replica is not None:
                self._check_report_interval(f"models: {model.name}: replica", model.replica)
            for name in (*model.names, *model.aliases):
                if name in owners:
                    raise ValueError(
                        f"models: {name!r} is a name of {owners[name]!r} and of {model.name!r}:"
                        " each name, of an adapter or an alias too, is allowed once"
                    )
                owners[name] = model.name
            suffix = _deployment_suffix(model.name)
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


def _deployment_suffix(name: str) -> str:
    return _NOT_IN_DEPLOYMENTS.sub("-", name)
