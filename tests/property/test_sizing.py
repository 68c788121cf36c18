"""The wanted number of replicas is within its limits and above zero where there is work."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.scaling.demand import Demand
from justitia_ray.scaling.sizing import Fleet, Sizer, SizingRules

KV, SEATS = 10_000, 64
MOST = 20

works = st.floats(0, 1e12)
counts = st.integers(0, 500)


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    """Return the random demand of a queue."""
    replicas = draw(st.integers(0, MOST))
    running = draw(counts) if replicas else 0
    held = draw(st.integers(0, replicas * KV))
    return Demand(
        at=draw(st.floats(0, 1e6)),
        served=draw(works),
        queued=draw(works),
        in_flight=draw(works),
        expected_more=draw(works),
        waiting=draw(counts),
        running=running,
        applications=draw(counts),
        usable_kv_tokens=held + draw(st.integers(0, 10**9)),
        sequences=draw(counts),
        replicas=replicas,
        kv_tokens=replicas * KV,
        seats=replicas * SEATS,
        held_tokens=held,
        promises=draw(st.dictionaries(st.sampled_from("abcd"), works)),
    )


rules = st.builds(
    SizingRules,
    minimum=st.integers(0, 3),
    maximum=st.integers(3, MOST),
    target_drain_s=st.floats(1, 1e3),
    load_s=st.floats(0, 1e3),
)
fleets = st.builds(Fleet, st.integers(0, MOST), st.none() | st.floats(0, 1e3))


@given(st.lists(demands(), min_size=1, max_size=8), rules, fleets)
def test_wanted_number_of_replicas_is_within_its_limits(
    readings: list[Demand], own: SizingRules, fleet: Fleet
) -> None:
    """Ray Serve scales up from zero by this number alone."""
    sizer = Sizer()
    for reading in sorted(readings, key=lambda one: one.at):
        decision = sizer.size(reading, own, fleet)

        assert own.minimum <= decision.wanted <= MOST
        assert decision.drain_s >= 0
        assert decision.floor <= reading.replicas
        if reading.waiting or reading.running or reading.applications:
            assert decision.asked >= 1


@given(demands(), rules, fleets, st.floats(1, 10))
def test_more_waiting_work_never_needs_fewer_replicas(
    reading: Demand, own: SizingRules, fleet: Fleet, factor: float
) -> None:
    """A longer queue must not remove replicas."""
    more = replace(reading, queued=reading.queued * factor)

    fewer = Sizer().size(reading, own, fleet)
    assert fewer.asked <= Sizer().size(more, own, fleet).asked


@given(demands(), rules, fleets)
def test_longer_target_drain_time_never_needs_more_replicas(
    reading: Demand, own: SizingRules, fleet: Fleet
) -> None:
    """An operator who accepts longer waits needs fewer replicas."""
    patient = replace(own, target_drain_s=2 * own.target_drain_s)

    asked = Sizer().size(reading, own, fleet).asked
    assert Sizer().size(reading, patient, fleet).asked <= asked
