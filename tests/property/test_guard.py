"""Property tests of the guard's budget B: an application lags by at most B beyond work in flight.

Urgency is drawn at random here, where the guard uses a shadow of VTC. The bound must hold for any
urgency, so that an application with false stages, gaps or lengths takes at most B from others.
"""

from collections.abc import Callable
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.core.policies.guarded import policy as guarded
from justitia_ray.core.policies.guarded.foretold import ForetoldVtc
from justitia_ray.core.policies.guarded.policy import GuardedPolicy
from justitia_ray.core.policies.guarded.slack import Slack
from justitia_ray.units import ApplicationId, Seconds
from tests.property.engine import Arrival, Engine, Outcomes, Server
from tests.property.profiles import examples
from tests.property.test_bound import assert_bounds_of_the_core, elephant_and_mice
from tests.property.workloads import arrivals, servers


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


def run_with_urgency(
    claims: type[ForetoldVtc],
    options: dict[str, object],
    replicas: list[Server],
    applications: list[Arrival],
) -> Outcomes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guarded, "ForetoldVtc", claims)
        return Engine(replicas, options=options).run(applications)


@pytest.mark.parametrize(
    ("replicas", "options"),
    [
        (servers(), {}),
        (servers(lagging=True), {}),
        (servers(), {"order": "sgps"}),
        (servers(3, lagging=True), {"order": "sgps"}),
        (servers(2), {"order": "sgps", "backfill": 1}),
    ],
)
@examples(40)
@given(data=st.data())
def test_lag_is_within_the_budget_for_any_urgency(
    replicas: st.SearchStrategy[list[Server]], options: dict[str, object], data: st.DataObject
) -> None:
    """The bound is the work in flight, other work out of order, and the budget for overtaking."""
    machines = data.draw(replicas)
    iterations = data.draw(st.sampled_from([0.5, 1, 3, 10]))
    outcomes = run_with_urgency(
        random_shadow(data.draw(st.integers(0, 99))),
        options | {"guard_iterations": iterations},
        machines,
        data.draw(arrivals(weighted=True)),
    )
    budget = iterations * sum(machine.kv_tokens for machine in machines)

    assert outcomes.worst <= outcomes.in_flight + outcomes.report + outcomes.passed + budget
    assert_bounds_of_the_core(outcomes)


@examples(60)
@given(data=st.data())
def test_stages_and_gaps_stay_within_the_bound_of_the_core(data: st.DataObject) -> None:
    """The core adds the overtaking budget to its bound where the budget was used."""
    outcomes = run_with_urgency(
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
def test_urgent_small_applications_delay_a_large_one_by_at_most_the_budget(
    change: Callable[[pytest.MonkeyPatch], None], holds: bool
) -> None:
    """The bound is lost without a budget, or if the budget is renewed for late applications."""
    with pytest.MonkeyPatch.context() as patch:
        change(patch)
        iterations = 10
        options: dict[str, object] = {"guard_iterations": iterations}
        outcomes = run_with_urgency(
            _mice_are_urgent(), options, [Server(16, 2)], elephant_and_mice()
        )

    late = outcomes.lag["a0"]
    assert (late <= outcomes.in_flight + outcomes.report + iterations * 16) == holds
