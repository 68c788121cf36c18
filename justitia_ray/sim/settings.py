"""Settings of one simulated run: policy, engines, predictions, delays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from justitia_ray.predictor.observation import Observation
from justitia_ray.predictor.stages import CHARGE_FACTOR
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.recognition import APPLICATION
from justitia_ray.units import ApplicationId, KvTokenTime, Seconds


@dataclass(frozen=True, slots=True)
class RunSettings:
    """A policy, its options, the engines, the predictions and a seed."""

    engine: EngineProfile
    policy: str = "justitia"
    policy_options: Mapping[str, object] = field(default_factory=dict)
    replicas: int = 1
    prediction: str = "oracle"
    """`oracle`; `noisy:λ`: each cost and length times a factor drawn from [1/λ, λ]; `learned`: from
    what has finished, as the service predicts; `table`: costs from `predicted_costs`."""
    seed: int = 0
    """Seed of the predictions' noise, and of trainings."""
    report_interval_s: Seconds = 0.0
    """Age of a replica's last report on its running inferences, at most; 0: exact. Ends are told at
    once. The service's replicas report when they pull, at least every second."""
    dispatch_s: Seconds = 0.0
    """Time from the lease of an inference to its arrival at the engine: memory is kept meanwhile,
    and nothing is computed. In the service the payload is under way then."""
    front_end_s: Seconds = 0.0
    """Time that a call occupies the front end, which all calls pass one at a time, on their way
    into the queue and with their answers: in the service the processes before the scheduler."""
    hold_up_s: Seconds = 0.0
    """Time that a call holds up every engine when it arrives, and again when it ends, while all
    engines run something: on machines where the serving processes have no core of their own."""
    sample_kv: bool = False
    """Whether to record how much KV each application holds."""
    models_dir: str | None = None
    """Directory of the models that `learned` predicts with; None: they are trained in the run."""
    predicted_costs: Mapping[ApplicationId, KvTokenTime] = field(default_factory=dict)
    """For `table`: token·iterations of every application."""
    history: Sequence[Observation] = ()
    """For `table`: earlier applications, of which the stages are known when the run begins."""
    lengths_are_known: bool = False
    """For `table`: whether callers force the lengths of outputs, so that nobody predicts them."""
    raises: bool = True
    """Whether what is expected at a later stage raises charges (not with `oracle`)."""
    charge_factor: float = CHARGE_FACTOR
    """Factor of what is charged over what is expected; with `noisy:λ` λ at most."""
    recognised: str = APPLICATION
    """How the scheduler knows an inference's application: `application`, as its caller names
    it; `conversation`: by what was said; `inference`: nothing, each is one of its own."""
