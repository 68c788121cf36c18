"""The one schema of the one YAML: Serve's `args` of the application, and its `user_config`.

`AppConfig` is what one model of an application goes by, composed of a section for each part; a
change of it restarts deployments. `SchedulingConfig` is how its queue is ordered; a change of it
reaches the running scheduler, and the queue stays. `justitia_ray.app_args` reads both where an
application has several models. Units are in the keys; the reason of each default stands beside it.
"""

from justitia_ray.config.app_config import AppConfig, SharedSections, parse_app_config
from justitia_ray.config.complaints import describe
from justitia_ray.config.engine_sections import EngineSection, FakeEngineSection, ReplicaSection
from justitia_ray.config.ingress_section import IngressSection
from justitia_ray.config.metrics_section import MetricsSection
from justitia_ray.config.model_section import ModelSection
from justitia_ray.config.prediction_section import PredictionSection
from justitia_ray.config.scheduler_section import SchedulerSection
from justitia_ray.config.scheduling_config import SchedulingConfig, parse_scheduling_config
from justitia_ray.config.store_section import StoreSection

__all__ = [
    "AppConfig",
    "EngineSection",
    "FakeEngineSection",
    "IngressSection",
    "MetricsSection",
    "ModelSection",
    "PredictionSection",
    "ReplicaSection",
    "SchedulerSection",
    "SchedulingConfig",
    "SharedSections",
    "StoreSection",
    "describe",
    "parse_app_config",
    "parse_scheduling_config",
]
