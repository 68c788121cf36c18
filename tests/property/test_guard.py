"""Property tests of the guard's budget B: an application lags by at most B beyond work in flight.

Urgency is drawn at random here, where the guard uses a shadow of VTC. The bound must hold for any
urgency, so that an application with false stages, gaps or lengths takes at most B from others.
"""

from collections.abc import Callable
from math import inf
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.core.policies.guarded import policy as guarded
from justitia_ray.core.policies.guarded.foretold import ForetoldVtc
from justitia_ray.core.policies.guarded.passing import Guard
from justitia_ray.core.policies.guarded.policy import GuardedPolicy
from justitia_ray.core.policies.guarded.slack import Slack
from justitia_ray.core.state import State
from justitia_ray.cost import PrefillCost
from justitia_ray.units import ApplicationId, KvTokenTime, Seconds
from tests.property.engine import Arrival, Engine, Outcomes, Server
from tests.property.profiles import examples
from tests.property.test_bound import assert_bounds_of_the_core, elephant_and_mice
from tests.property.workloads import arrivals, servers

DELIVERED = 13
"""Service of an iteration of two seats with inferences of 4 prompt and 4 output tokens."""


def random_shadow(seed: int) -> type[ForetoldVtc]:
    """Return a simulated schedule that reports random applications as urgent each time."""

    class RandomShadow(ForetoldVtc):
        def urgent(self, now: Seconds, waits: object = None) -> list[ApplicationId]:
            names = sorted(self.clock.shadows)
            random = Random(f"{seed}/{now}")
            return random.sample(names, random.randint(0, len(names)))

    return RandomShadow


def _mice_are_urgent() -> type[ForetoldVtc]:
    class MiceAreUrgent(ForetoldVtc):
        def urgent(self, now: Seconds, waits: object = None) -> list[ApplicationId]:
            return sorted(name for name in self.clock.shadows if name != "a0")

    return MiceAreUrgent


class UrgentRun(NamedTuple):
    outcomes: Outcomes
    budget: KvTokenTime
    """Largest budget B that the guard used."""


def run_with_urgency(
    claims: type[ForetoldVtc],
    options: dict[str, object],
    replicas: list[Server],
    applications: list[Arrival],
    prefill_cost: PrefillCost | None = None,
) -> UrgentRun:
    budgets: list[KvTokenTime] = [0]

    class NotingGuard(Guard):
        def urgent(self) -> list[ApplicationId]:
            budgets.append(self.budget())
            return super().urgent()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guarded, "ForetoldVtc", claims)
        patch.setattr(guarded, "Guard", NotingGuard)
        engine = Engine(replicas, options=options, prefill_cost=prefill_cost)
        return UrgentRun(engine.run(applications), max(budgets))


@pytest.mark.parametrize(
    ("replicas", "options", "prefill_cost"),
    [
        (servers(), {}, None),
        (servers(lagging=True), {}, None),
        (servers(), {"order": "sgps"}, None),
        (servers(3, lagging=True), {"order": "sgps"}, None),
        (servers(2), {"order": "sgps", "backfill": 1}, None),
        (servers(2, lagging=True), {"order": "sgps"}, PrefillCost(40)),
        (servers(), {}, PrefillCost(3, 2)),
    ],
)
@examples(40)
@given(data=st.data())
def test_lag_under_any_urgency_is_within_the_overtaking_budget(
    replicas: st.SearchStrategy[list[Server]],
    options: dict[str, object],
    prefill_cost: PrefillCost | None,
    data: st.DataObject,
) -> None:
    """With a single stage and true costs the bound is I, plus other work out of order, plus B.

    With a cost of prefill the replicas deliver more than their memory in an iteration.
    """
    outcomes, budget = run_with_urgency(
        random_shadow(data.draw(st.integers(0, 99))),
        options | {"guard_iterations": data.draw(st.sampled_from([0.5, 1, 3, 10]))},
        data.draw(replicas),
        data.draw(arrivals(weighted=True)),
        prefill_cost,
    )

    assert outcomes.worst <= outcomes.in_flight + outcomes.report + outcomes.passed + budget
    assert_bounds_of_the_core(outcomes)


@examples(60)
@given(data=st.data())
def test_lag_with_stages_and_tool_gaps_is_within_the_cores_bound(data: st.DataObject) -> None:
    """The core adds the guard's budget to its bound where the guard has used it."""
    outcomes, _ = run_with_urgency(
        random_shadow(data.draw(st.integers(0, 99))),
        {"order": "sgps", "guard_iterations": data.draw(st.sampled_from([1, 10]))},
        data.draw(servers(2)),
        data.draw(arrivals(stages=4, weighted=True)),
    )
    assert_bounds_of_the_core(outcomes)


def _remove_budget(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GuardedPolicy, "guard_budget", inf)


def _measure_slack_wrongly(patch: pytest.MonkeyPatch) -> None:
    """Mutant that takes the remaining charge as the slack of an application that is late."""

    def least_slack(slack: Slack, before: object) -> float:
        owed, found = 0.0, inf
        for entry in slack._overdue:
            if entry is before:
                break
            owed += entry.remaining
            found = min(found, slack._served - owed)
        return found

    def allows_uncached(slack: Slack, name: str, amount: float) -> bool:
        slack._least_overdue = None
        return exactly(slack, name, amount)

    exactly = Slack.allows
    patch.setattr(Slack, "_least_of_overdue", least_slack)
    patch.setattr(Slack, "allows", allows_uncached)


@pytest.mark.parametrize(
    ("change", "holds"),
    [(lambda patch: None, True), (_remove_budget, False), (_measure_slack_wrongly, False)],
)
def test_delay_of_a_large_application_by_urgent_small_ones_is_limited(
    change: Callable[[pytest.MonkeyPatch], None], holds: bool
) -> None:
    """The bound is lost without a budget, or if the budget is renewed for late applications."""
    with pytest.MonkeyPatch.context() as patch:
        change(patch)
        iterations = 10
        options: dict[str, object] = {"guard_iterations": iterations}
        outcomes, _ = run_with_urgency(
            _mice_are_urgent(), options, [Server(16, 2)], elephant_and_mice()
        )

    late = outcomes.lag["a0"]
    assert (late <= outcomes.in_flight + outcomes.report + iterations * DELIVERED) == holds


def _convert_by_memory(patch: pytest.MonkeyPatch) -> None:
    """Take the KV memory of the replicas for the service of an iteration."""
    patch.setattr(State, "kv_per_iteration", State.kv_tokens)


@pytest.mark.parametrize("iterations", [10, 20, 50])
@pytest.mark.parametrize(
    ("server", "prefill_cost", "delivered"),
    [
        (Server(16, 2), None, DELIVERED),
        (Server(160, 2), None, DELIVERED),
        (Server(16, 2), PrefillCost(9), DELIVERED + 2 * 9),
        (Server(16, 2), PrefillCost(40), DELIVERED + 2 * 40),
    ],
    ids=["full memory", "few seats", "more than its memory", "six times its memory"],
)
def test_overtaking_delays_a_large_application_by_the_budgeted_iterations(
    iterations: int, server: Server, prefill_cost: PrefillCost | None, delivered: int
) -> None:
    """With a budget by the memory the cost is 0 to 114 iterations instead of 10, 4 to 375 of 50."""
    found = []
    for change in (lambda patch: None, _convert_by_memory):
        with pytest.MonkeyPatch.context() as patch:
            change(patch)
            outcomes, _ = run_with_urgency(
                _mice_are_urgent(),
                {"guard_iterations": iterations},
                [server],
                elephant_and_mice(),
                prefill_cost,
            )
        late = outcomes.lag["a0"] - outcomes.in_flight - outcomes.report
        found.append((outcomes.jct["a0"], late / delivered))
    measured, by_memory = found

    assert measured[0] == _JCT_OF_THE_ELEPHANT[iterations]
    assert iterations - 12 <= measured[1] <= iterations
    if delivered > server.kv_tokens:
        assert by_memory[0] < measured[0]
    elif 2 * delivered < server.kv_tokens:
        assert by_memory[1] > 2 * iterations


_JCT_OF_THE_ELEPHANT = {10: 288, 20: 296, 50: 328}
"""Iterations until the elephant ends, by `guard_iterations`."""
