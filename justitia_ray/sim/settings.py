"""What one simulated run is made with."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.units import Seconds


@dataclass(frozen=True, slots=True)
class RunSettings:
    """A policy, its options, the engines, the predictions and a seed."""

    engine: EngineProfile
    policy: str = "justitia"
    policy_options: Mapping[str, object] = field(default_factory=dict)
    replicas: int = 1
    prediction: str = "oracle"
    """`oracle`, or `noisy:λ`: each cost and length times a factor drawn from [1/λ, λ]."""
    seed: int = 0
    """Of the predictions' noise."""
    report_interval_s: Seconds = 0.0
    """How old may be what a replica has reported of its running inferences; 0: exact. Ends are told
    at once. The service's replicas report when they pull, at least every second."""
    sample_kv: bool = False
    """Whether to record how much KV each application holds."""
