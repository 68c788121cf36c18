"""Schema of the configuration file: an application's Serve `args`, and its Ingress's `user_config`.

`AppArgs` and `AppSettings` are read from the file. They are split into settings for each model,
`AppConfig` and `SchedulingConfig`, so that only the ingress handles several models. A change of
`args` restarts deployments; a change of `user_config` is sent to the running scheduler, and the
queue stays.

The docstring of a key is its description for operators: `scripts/write_tables` writes the tables of
deployments/README.md from these docstrings. Units are part of the keys' names.
"""

from justitia_ray.config.application import (
    AppArgs,
    AppConfig,
    ModelEntry,
    PlacedModel,
    SharedSections,
)
from justitia_ray.config.callers import AccessSection, RecognitionSection
from justitia_ray.config.engine import AutoscalingSection, EngineSection, ReplicaSection
from justitia_ray.config.scheduling import AppSettings, SchedulingConfig
from justitia_ray.config.schema import Weight, describe
from justitia_ray.config.service import (
    LONG_POLL_S,
    IngressSection,
    PredictionSection,
    SchedulerSection,
    StoreSection,
    TlsSection,
    TracingSection,
    TransportSection,
)

__all__ = [
    "LONG_POLL_S",
    "AccessSection",
    "AppArgs",
    "AppConfig",
    "AppSettings",
    "AutoscalingSection",
    "EngineSection",
    "IngressSection",
    "ModelEntry",
    "PlacedModel",
    "PredictionSection",
    "RecognitionSection",
    "ReplicaSection",
    "SchedulerSection",
    "SchedulingConfig",
    "SharedSections",
    "StoreSection",
    "TlsSection",
    "TracingSection",
    "TransportSection",
    "Weight",
    "describe",
]
