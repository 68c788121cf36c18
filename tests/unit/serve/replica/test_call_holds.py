"""Holds of contexts wait at the replica for the calls of their leases."""

from justitia_ray.core.actions import Grant
from justitia_ray.protocol.engine import Hold
from justitia_ray.protocol.messages import HoldContext, ReleaseContexts
from justitia_ray.serve.replica.call_holds import CallHolds

_GRANT = Grant("q", "i", "1-1", "r", 7, 10, 0.0)


def test_context_hold_is_passed_once_to_the_call_of_its_lease() -> None:
    holds = CallHolds()
    holds.read([_GRANT, HoldContext("1-1", "a", 2.0), HoldContext("1-2", "b", 3.0)])

    assert Hold("a", 2.0) == holds.take("1-1")
    assert holds.take("1-1") is None
    assert Hold("b", 3.0) == holds.take("1-2")


def test_next_engine_call_names_the_ended_applications() -> None:
    holds = CallHolds()
    holds.read([ReleaseContexts("y"), ReleaseContexts("z"), ReleaseContexts("y")])

    assert Hold("", 0.0, ("y", "z")) == holds.take("1-1")
    assert holds.take("1-1") is None
    holds.read([ReleaseContexts("x"), HoldContext("1-2", "a", 2.0)])
    assert Hold("a", 2.0, ("x",)) == holds.take("1-2")


def test_context_holds_of_leases_that_never_run_do_not_accumulate() -> None:
    holds = CallHolds()
    holds.read([HoldContext(str(n), "a", 1.0) for n in range(5000)])
    holds.read([ReleaseContexts(str(n)) for n in range(5000)])

    assert holds.take("0") == Hold("", 0.0, tuple(str(n) for n in range(5000 - 4096, 5000)))
    assert holds.take("4999") == Hold("a", 1.0)
