"""Bounds on starts: no waiting application starts later than any bound that was read for it."""

from collections.abc import Sequence
from fractions import Fraction

from hypothesis import assume, given
from hypothesis import strategies as st

from justitia_ray.core import events as ev
from justitia_ray.units import KvTokenTime, Seconds
from tests.property.engine import Arrival, Engine, Outcomes, Server
from tests.property.profiles import examples
from tests.property.workloads import arrivals, servers


class _BoundReadingEngine(Engine):
    """Engine that reads the bound of every waiting application after every event."""

    def __init__(self, replicas: Sequence[Server], policy: str = "justitia") -> None:
        super().__init__(replicas, policy, meter=None)
        self.least: dict[str, Fraction] = {}
        """Smallest bound that was read for each application."""
        self.greatest: dict[str, Fraction] = {}

    def _handle(self, event: ev.Event) -> None:
        super()._handle(event)
        for name, application in self.core.state.applications.items():
            lag = self.core.lag(name)
            if application.waiting and lag is not None and lag.bound_kv_token_time is not None:
                bound = Fraction(lag.bound_kv_token_time)
                self.least[name] = min(bound, self.least.get(name, bound))
                self.greatest[name] = max(bound, self.greatest.get(name, bound))


@examples(60)
@given(arrivals(weighted=True), st.one_of(servers(), servers(lagging=True)))
def test_application_starts_no_later_than_every_reported_bound(
    applications: list[Arrival], replicas: list[Server]
) -> None:
    """The service promises each waiting application a latest start in units of service."""
    engine = _BoundReadingEngine(replicas)
    outcomes = engine.run(applications)

    assume(engine.least)  # else nothing had to wait
    for name, bound in engine.least.items():
        assert outcomes.lag[name] <= bound + outcomes.report, name
    assert max(engine.greatest.values()) <= outcomes.in_flight + outcomes.report


@examples(30)
@given(arrivals(weighted=True), servers(lagging=True))
def test_lag_of_an_ended_application_does_not_depend_on_metering(
    applications: list[Arrival], replicas: list[Server]
) -> None:
    measured = Engine(replicas).run(applications)
    computed = Engine(replicas, meter=None).run(applications)

    assert _lags_by_application(measured) == _lags_by_application(computed)


def _lags_by_application(outcomes: Outcomes) -> dict[str, tuple[KvTokenTime, Seconds]]:
    lags = ((name, ended.lag) for name, ended in outcomes.ended.items())
    return {name: (lag.kv_token_time, lag.seconds) for name, lag in lags if lag is not None}
