"""`SchedulingConfig`: how a queue is ordered, which may change while the application runs."""

from typing import Any

from pydantic import Field, model_validator

from justitia_ray.config.complaints import checked
from justitia_ray.config.section import Positive, Section
from justitia_ray.core.admission import ADMISSIONS
from justitia_ray.core.policies import parse_options
from justitia_ray.errors import ConfigError


class SchedulingConfig(Section):
    """`user_config` of the Ingress deployment: what can change while the application runs."""

    policy: str = "justitia"
    policy_options: dict[str, Any] = Field(default={})
    admission: str = "peak"
    """`peak` keeps future KV within memory: no recomputation, 0.2 points of mean JCT."""
    tenant_weights: dict[str, Positive] = Field(default={})
    """Weight of a tenant's applications that ask for none; 1 otherwise."""

    @model_validator(mode="after")
    def _known_names(self) -> "SchedulingConfig":
        if self.admission not in ADMISSIONS:
            raise ValueError(f"admission: {self.admission!r} is not one of {', '.join(ADMISSIONS)}")
        try:
            parse_options(self.policy, self.policy_options)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self


def parse_scheduling_config(values: dict[str, Any]) -> SchedulingConfig:
    """Check the Ingress deployment's `user_config`.

    Raises:
        ConfigError: If a key is unknown or a value is not allowed; names every one of them.
    """
    return checked(SchedulingConfig, values)
