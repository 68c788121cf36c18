"""Ray Serve's autoscaler in a simulated run: Serve's rules and delays, with its policy or ours.

Serve's functions are called as its controller calls them, with the simulation's clock. This module
imports Ray, so import it only where a run with Serve's autoscaler starts.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ray.serve.autoscaling_policy import (
    _apply_delay_logic,
    _apply_scaling_factors,
    _get_cold_start_scale_up_replicas,
    default_autoscaling_policy,
)
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from justitia_ray.scaling.demand import read_demand
from justitia_ray.scaling.sizing import Fleet, Sizer, SizingRules
from justitia_ray.serve.drain_policy import DrainTimePolicy
from justitia_ray.sim.autoscaling import FleetView
from justitia_ray.units import Seconds

Policy = Callable[[AutoscalingContext], tuple[int | float, dict[str, Any]]]


def scaling_config(
    minimum: int, maximum: int, requests: float | None, up_s: Seconds, down_s: Seconds
) -> AutoscalingConfig:
    """Return Ray Serve's configuration of an autoscaler.

    Args:
        minimum: Smallest number of replicas.
        maximum: Largest number of replicas.
        requests: Target number of requests per replica in Serve's default policy; None: Serve's
            default.
        up_s: Delay before more replicas are started.
        down_s: Delay before replicas are stopped.
    """
    aims = {} if requests is None else {"target_ongoing_requests": requests}
    return AutoscalingConfig(
        min_replicas=minimum,
        max_replicas=maximum,
        upscale_delay_s=up_s,
        downscale_delay_s=down_s,
        **aims,
    )


class ServeScaler:
    """Autoscaler of simulated replicas that decides as Ray Serve's controller does."""

    def __init__(self, config: AutoscalingConfig, policy: Policy) -> None:
        self._config = config
        self._policy = policy
        self._state: dict[str, Any] = {}
        self._requests: deque[tuple[Seconds, int]] = deque()
        """Number of waiting and running requests at each recent autoscaling decision."""

    def target(self, view: FleetView) -> int:
        config = self._config
        self._requests.append((view.now, view.requests))
        while self._requests[0][0] < view.now - config.look_back_period_s:
            self._requests.popleft()
        context = AutoscalingContext(
            deployment_id=None,
            deployment_name="Replica",
            app_name="simulated",
            current_num_replicas=view.running,
            target_num_replicas=view.target,
            running_replicas=[],
            total_num_requests=sum(n for _, n in self._requests) / len(self._requests),
            total_queued_requests=None,
            aggregated_metrics=None,
            raw_metrics=None,
            capacity_adjusted_min_replicas=config.min_replicas,
            capacity_adjusted_max_replicas=config.max_replicas,
            policy_state=dict(self._state),
            last_scale_up_time=None,
            last_scale_down_time=None,
            current_time=view.now,
            config=config,
        )
        decided = self._delayed_target(context, view.now)
        return int(min(config.max_replicas, max(config.min_replicas, decided)))

    def _delayed_target(self, context: AutoscalingContext, now: Seconds) -> int:
        """Return the number of replicas that Serve would want, by its delays in simulated time."""
        cold = _get_cold_start_scale_up_replicas(context)
        if cold is not None:
            return int(cold)
        wanted, _ = self._policy(context)
        scaled = _apply_scaling_factors(wanted, context.current_num_replicas, self._config)
        if context.current_num_replicas == 0 and scaled > 0:
            return int(scaled)
        decided, self._state = _apply_delay_logic(
            max(0, scaled), context.target_num_replicas, self._config, self._state, _now=now
        )
        return int(decided)


class SimulatedSchedulerView:
    """Gives Serve's autoscaler the simulated scheduler's state, without delay."""

    def __init__(self) -> None:
        self.view: FleetView | None = None
        self._sizer = Sizer()

    def latest(self, question: Mapping[str, Any]) -> tuple[dict[str, Any], Seconds] | None:
        if self.view is None:
            return None
        rules = SizingRules(**question["rules"])
        demand = read_demand(self.view.core, self.view.now, rules.hold_s)
        return self._sizer.size(demand, rules, Fleet(**question["fleet"])).as_json(), 0.0


class DrainScaler(ServeScaler):
    """Ray Serve's autoscaler with this project's policy of drain times."""

    def __init__(self, config: AutoscalingConfig, rules: Mapping[str, Any]) -> None:
        self._answers = SimulatedSchedulerView()
        policy = DrainTimePolicy("simulated", "simulated", dict(rules), answers=self._answers)
        super().__init__(config, policy)

    def target(self, view: FleetView) -> int:
        self._answers.view = view
        return super().target(view)


class RequestsScaler(ServeScaler):
    """Ray Serve's autoscaler with its default policy: ongoing requests per replica."""

    def __init__(self, config: AutoscalingConfig) -> None:
        super().__init__(config, default_autoscaling_policy)
