"""`AppConfig`: what one model of an application goes by, composed of the sections."""

from pathlib import Path
from typing import Any, Literal

from justitia_ray.config.complaints import checked
from justitia_ray.config.engine_sections import EngineSection, ReplicaSection
from justitia_ray.config.ingress_section import IngressSection
from justitia_ray.config.metrics_section import MetricsSection
from justitia_ray.config.model_section import ModelSection
from justitia_ray.config.prediction_section import PredictionSection
from justitia_ray.config.scheduler_section import SchedulerSection
from justitia_ray.config.section import Name, Section
from justitia_ray.config.store_section import StoreSection


class SharedSections(Section):
    """What all models of an application have in common."""

    name: Name = "justitia"
    """Serve application name; part of the scheduler's name."""
    log_encoding: Literal["TEXT", "JSON"] | None = None
    """Of what Serve's processes of this application log; None: Serve's own (`logging_config` of the
    application reaches the Ingress only: the others have one, to write no access log). The
    scheduler, which is not Serve's, always writes JSON lines."""
    engine: EngineSection = EngineSection()
    replica: ReplicaSection = ReplicaSection()
    scheduler: SchedulerSection = SchedulerSection()
    store: StoreSection = StoreSection()
    prediction: PredictionSection = PredictionSection()
    ingress: IngressSection = IngressSection()
    metrics: MetricsSection = MetricsSection()


class AppConfig(SharedSections):
    """One model of an application with its queue: what every part of it goes by.

    The arguments of an application that serves one model have this form;
    `justitia_ray.app_args` reads those of several.
    """

    model: ModelSection

    @property
    def scheduler_name(self) -> str:
        """Name of the scheduler actor: one for each model of an application."""
        return f"scheduler/{self.name}/{self.model.name}"

    @property
    def store_name(self) -> str:
        """Prefix of the keys in Redis."""
        return f"{self.name}/{self.model.name}"

    @property
    def data_dir(self) -> Path:
        """Directory of the embedded Redis of this application and model."""
        flat = self.store_name.replace("/", "_")
        return Path(self.store.data_dir).expanduser() / flat


def parse_app_config(values: dict[str, Any]) -> AppConfig:
    """Check the application's arguments.

    Raises:
        ConfigError: If a key is unknown or a value is not allowed; names every one of them.
    """
    return checked(AppConfig, values)
