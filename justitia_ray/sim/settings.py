"""Settings of one simulated run: policy, engines, predictions, delays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from justitia_ray.core.tenants import TenantTree
from justitia_ray.predictor.observation import Observation
from justitia_ray.predictor.stages import CHARGE_FACTOR
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.recognition import APPLICATION
from justitia_ray.units import ApplicationId, KvTokenTime, Seconds


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of a simulated run."""

    engine: EngineProfile
    policy: str = "justitia"
    policy_options: Mapping[str, object] = field(default_factory=dict)
    replicas: int = 1
    prediction: str = "oracle"
    """How costs and lengths are predicted: `oracle`, `noisy:λ`, `learned` or `table`.

    `oracle`: true values; `noisy:λ`: true values, each times a factor drawn from [1/λ, λ];
    `learned`: from finished applications, as the service predicts; `table`: costs from
    `predicted_costs`.
    """
    seed: int = 0
    """Seed of the predictions' noise and of trainings."""
    report_interval_s: Seconds = 0.0
    """Largest seconds between a replica's reports on its running inferences; 0: reports are always
    exact.

    Ended inferences are reported at once. The service's replicas report when they pull, at least
    every second.
    """
    dispatch_s: Seconds = 0.0
    """Seconds from the lease of an inference to its arrival at the engine. Memory is reserved
    meanwhile, but no token is computed.
    """
    front_end_s: Seconds = 0.0
    """Seconds for which a call occupies the front end, in each direction; calls pass one at a time.

    In the service, the front end is the processes before the scheduler.
    """
    hold_up_s: Seconds = 0.0
    """Seconds by which each arriving and each ending call delays every busy engine.

    Above 0 for machines on which the serving processes share the engines' cores.
    """
    sample_kv: bool = False
    """Whether to record the KV held by each application."""
    models_dir: str | None = None
    """Directory of models for `learned`; None: models are trained in the run."""
    predicted_costs: Mapping[ApplicationId, KvTokenTime] = field(default_factory=dict)
    """Cost of every application in token·iterations, for `table`."""
    history: Sequence[Observation] = ()
    """Earlier applications from which stages are known, for `table`."""
    lengths_are_known: bool = False
    """Whether callers force the lengths of outputs, so that lengths are not predicted; for `table`.
    """
    raises: bool = True
    """Whether predictions at a later stage may raise charges; not with `oracle`."""
    charge_factor: float = CHARGE_FACTOR
    """Factor from the predicted cost to the charge; with `noisy:λ` at most λ."""
    with_prefill: bool = False
    """Whether computing prompts is charged, at the cost of the engine profile."""
    tenants: TenantTree = field(default_factory=TenantTree)
    """Tree of tenants, for policies with `fairness: tenant`."""
    recognised: str = APPLICATION
    """How the scheduler finds an inference's application: `application`, `conversation` or
    `inference`.

    `application`: by the caller's id; `conversation`: by the text; `inference`: not at all, each
    inference is its own application.
    """
