"""A stall is found by steps that are not made, whatever else takes its time."""

from dataclasses import dataclass, field

import pytest

from justitia_ray.config import ReplicaSection
from justitia_ray.protocol.engine import Steps
from justitia_ray.serve.replica.stalls import LOOK_S, StallWatch
from justitia_ray.units import Seconds

_SECTION = ReplicaSection(stall_factor=5.0, stall_allowance_s=15.0, stall_replace_s=60.0)


@dataclass
class _Engine:
    """An engine that is looked at as a replica does."""

    watch: StallWatch = field(default_factory=lambda: StallWatch(_SECTION))
    now: Seconds = 1_000.0
    made: int = 0
    suspended: str = ""

    def pass_time(self, for_s: Seconds, *, has_work: bool = True, look_s: Seconds = LOOK_S) -> None:
        """Make no step for so long."""
        until = self.now + for_s
        while self.now < until - 1e-9:
            self.now = min(until, self.now + look_s)
            self.watch.look(self.now, Steps(self.made, has_work), lambda: self.suspended)

    def step(self, lasts_s: Seconds = 0.0) -> None:
        """Make a step of some length."""
        self.pass_time(lasts_s)
        self.made += 1
        self.pass_time(LOOK_S)

    def is_stalled(self) -> bool:
        """Return whether it is found to be stalled."""
        return self.watch.is_stalled

    def warm_up(self) -> "_Engine":
        """Make the first steps, in which kernels are compiled."""
        for _ in range(20):
            self.step()
        return self


def test_engine_with_work_and_no_step_is_stalled_after_its_allowance() -> None:
    """66 s of it stood between a caller and an answer, and nothing noticed."""
    engine = _Engine().warm_up()

    engine.pass_time(14.0)
    assert not engine.is_stalled()

    engine.pass_time(4.0)  # 15 s, and five times the time between two looks
    assert engine.is_stalled()
    assert not engine.watch.is_lasting


def test_stall_ends_with_a_step_and_not_with_the_work() -> None:
    """Its leases are taken away at once, which shows nothing of the engine."""
    engine = _Engine().warm_up()
    engine.pass_time(20.0)

    engine.pass_time(10.0, has_work=False)
    assert engine.is_stalled()

    engine.step()
    assert not engine.is_stalled()
    engine.pass_time(10.0)
    assert not engine.is_stalled()


def test_stall_that_lasts_asks_for_a_replacement() -> None:
    """The time counts from where the stall was found, with work or without."""
    engine = _Engine().warm_up()
    engine.pass_time(20.0)
    found_s = engine.watch.stalled_s
    assert found_s is not None

    engine.pass_time(59.0 - found_s, has_work=False)
    assert not engine.watch.is_lasting

    engine.pass_time(1.5, has_work=False)
    assert engine.watch.is_lasting


def test_idle_engine_is_never_stalled() -> None:
    """An armed lease whose payload has not come gives the engine nothing to do."""
    engine = _Engine().warm_up()

    engine.pass_time(3_600.0, has_work=False)
    assert not engine.is_stalled()

    engine.pass_time(10.0)
    assert not engine.is_stalled()


def test_steps_without_tokens_are_no_stall() -> None:
    """Of a long prompt in pieces, and of requests that wait inside the engine."""
    engine = _Engine().warm_up()

    for _ in range(20):
        engine.step(lasts_s=10.0)
        assert not engine.is_stalled()


def test_longer_steps_are_waited_for_longer() -> None:
    """A step of 8 s was one of a large piece of a prompt; the next may take several times that."""
    engine = _Engine().warm_up()
    engine.step(lasts_s=8.0)

    engine.pass_time(15.0 + 5 * 8.0 - 1.0)
    assert not engine.is_stalled()

    engine.pass_time(4.0)
    assert engine.is_stalled()


def test_first_steps_compile_and_are_no_measure_of_later_ones() -> None:
    """A kernel of each kind may be compiled in them."""
    engine = _Engine()
    engine.step(lasts_s=55.0)
    assert not engine.is_stalled()
    assert 60.0 == engine.watch.limit_s

    engine.warm_up()
    engine.pass_time(20.0)
    assert engine.is_stalled()


def test_long_step_that_was_taken_for_a_stall_is_one_no_more() -> None:
    """Otherwise a call that needs such steps would be taken back each time, and never end."""
    engine = _Engine().warm_up()
    engine.step(lasts_s=40.0)
    assert not engine.is_stalled()

    engine.step(lasts_s=100.0)
    engine.pass_time(100.0)
    assert not engine.is_stalled()


@pytest.mark.parametrize("stopped_s", [10.0, 40.0])
def test_time_in_which_its_process_was_stopped_is_no_step(stopped_s: Seconds) -> None:
    """A second stop is found as soon as the first."""
    engine = _Engine().warm_up()
    limit_s = engine.watch.limit_s
    engine.suspended = "process 7"
    engine.pass_time(stopped_s)
    engine.suspended = ""
    engine.step()

    assert limit_s == engine.watch.limit_s


@pytest.mark.parametrize(("suspended", "hangs"), [("", True), ("process 7", False)])
def test_stall_by_a_signal_is_no_hang(suspended: str, hangs: bool) -> None:
    """Somebody has sent it: nothing that ran is suspected."""
    engine = _Engine(suspended=suspended).warm_up()
    assert not engine.watch.hangs

    engine.pass_time(20.0)
    assert hangs == engine.watch.hangs

    engine.step()
    assert not engine.watch.hangs


def test_long_step_is_forgotten_after_a_while() -> None:
    """One that compiled a kernel does not excuse a stall hours later."""
    engine = _Engine().warm_up()
    engine.step(lasts_s=10.0)
    assert engine.watch.limit_s > 60.0

    for _ in range(3):
        engine.pass_time(700.0, has_work=False)
        engine.step()

    assert engine.watch.limit_s < 20.0


def test_event_loop_that_stood_still_shows_nothing() -> None:
    """It has not heard of the steps that the engine has made meanwhile."""
    engine = _Engine().warm_up()

    for _ in range(3):
        engine.pass_time(30.0, look_s=30.0)
        assert not engine.is_stalled()
    engine.step()

    assert engine.watch.limit_s < 40.0  # and it was no step of 90 s
