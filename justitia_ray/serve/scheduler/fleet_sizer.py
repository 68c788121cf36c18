"""Compute the wanted number of a model's replicas, for autoscalers and metrics."""

import time
from collections.abc import Mapping
from typing import Any

from justitia_ray.config import AutoscalingSection
from justitia_ray.core import SchedulerCore
from justitia_ray.protocol.inspection import ScalingFacts
from justitia_ray.scaling.demand import read_demand
from justitia_ray.scaling.sizing import Fleet, SizeDecision, Sizer, SizingRules
from justitia_ray.units import Seconds

_TIMES_ITS_COST = 20
"""Maximum age of a cached wanted number of replicas, as a multiple of the time to compute it."""
_LEAST_AGE_S: Seconds = 0.2
_ASKED_S: Seconds = 60.0
"""Seconds without a request from the autoscaler after which its rules are dropped."""


class FleetSizer:
    """Computes the wanted number of replicas, with the rules of the autoscaler that asked last.

    Args:
        section: Autoscaling settings, which an autoscaler may override; None: any number of
            replicas, with the default target.
    """

    def __init__(self, section: AutoscalingSection | None) -> None:
        self._section = section
        self._own_rules = SizingRules() if section is None else section.rules
        self._rules, self._fleet = self._own_rules, Fleet()
        self._asked_at: Seconds | None = None
        self._sizer = Sizer()
        self._last: SizeDecision | None = None
        self._due_at: Seconds = 0.0

    @property
    def target_drain_s(self) -> Seconds | None:
        """Target time in seconds for serving all queued work; None: no autoscaler is active."""
        is_scaled = self._section is not None or self._asked_at is not None
        return self._rules.target_drain_s if is_scaled else None

    def answer(
        self, core: SchedulerCore, now: Seconds, question: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the wanted number of replicas for an autoscaler, and use its rules from now on.

        `leaving` in the result lists the draining replicas among those that the autoscaler counts
        as running: a restarted controller of Serve counts replicas that its predecessor took out of
        service.

        Args:
            core: The core.
            now: The core's current time.
            question: `SizingRules` and `Fleet` as dicts, under `rules` and `fleet`; names of the
                running replicas under `running`, which earlier policies do not send.
        """
        self._rules, self._fleet = SizingRules(**question["rules"]), Fleet(**question["fleet"])
        self._asked_at = now
        known = core.state.replicas
        named = (name for name in question.get("running", ()) if name in known)
        leaving = [name for name in named if known[name].draining]
        return self.decision(core, now).as_json() | {"leaving": leaving}

    def decision(self, core: SchedulerCore, now: Seconds) -> SizeDecision:
        """Return the wanted number of replicas; the result is cached for at least 0.2 s.

        Args:
            core: The core.
            now: The core's current time.
        """
        if self._asked_at is not None and now - self._asked_at > _ASKED_S:
            self._rules, self._fleet, self._asked_at = self._own_rules, Fleet(), None
        if self._last is None or now >= self._due_at:
            began_at = time.perf_counter()
            demand = read_demand(core, now, self._rules.hold_s)
            self._last = self._sizer.size(demand, self._rules, self._fleet)
            took_s = time.perf_counter() - began_at
            self._due_at = now + max(_LEAST_AGE_S, _TIMES_ITS_COST * took_s)
        return self._last

    def facts(self, core: SchedulerCore, now: Seconds) -> ScalingFacts:
        """Return the wanted number of replicas with its limits and reasons, for `justitia doctor`.

        Args:
            core: The core.
            now: The core's current time.
        """
        decision, section = self.decision(core, now), self._section
        is_serves = section is not None and not section.external
        return ScalingFacts(
            wanted=decision.wanted,
            asked=decision.asked,
            minimum=self._rules.minimum,
            maximum=self._rules.maximum,
            load_s=decision.load_s,
            asked_s_ago=None if self._asked_at is None else now - self._asked_at,
            downscale_delay_s=section.patience_s if section is not None and is_serves else None,
            is_serves=is_serves,
        )
