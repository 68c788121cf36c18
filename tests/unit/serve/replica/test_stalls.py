"""An engine stall is detected by missing steps, whatever else takes time."""

from dataclasses import dataclass, field

import pytest

from justitia_ray.config import ReplicaSection
from justitia_ray.protocol.engine import Steps
from justitia_ray.serve.replica.stalls import LOOK_S, StallWatch
from justitia_ray.units import Seconds

_SECTION = ReplicaSection(stall_factor=5.0, stall_allowance_s=15.0, stall_replace_s=60.0)


@dataclass
class _Engine:
    """Fake engine whose steps are checked periodically, as by a replica."""

    watch: StallWatch = field(default_factory=lambda: StallWatch(_SECTION))
    now: Seconds = 1_000.0
    made: int = 0
    suspended: str = ""

    def pass_time(self, for_s: Seconds, *, has_work: bool = True, look_s: Seconds = LOOK_S) -> None:
        until = self.now + for_s
        while self.now < until - 1e-9:
            self.now = min(until, self.now + look_s)
            self.watch.look(self.now, Steps(self.made, has_work), lambda: self.suspended)

    def make_step(self, lasts_s: Seconds = 0.0) -> None:
        self.pass_time(lasts_s)
        self.made += 1
        self.pass_time(LOOK_S)

    def is_stalled(self) -> bool:
        return self.watch.is_stalled

    def warm_up(self) -> "_Engine":
        for _ in range(20):
            self.make_step()
        return self


def test_busy_engine_counts_as_stalled_after_its_time_limit_without_a_step() -> None:
    engine = _Engine().warm_up()

    engine.pass_time(14.0)
    assert not engine.is_stalled()

    engine.pass_time(4.0)  # Silent for 15 s in all, longer than five intervals between checks.
    assert engine.is_stalled()
    assert not engine.watch.is_lasting


def test_engine_stall_ends_with_the_next_step() -> None:
    """A stalled engine has no leases left, so it looks idle until it makes a step."""
    engine = _Engine().warm_up()
    engine.pass_time(20.0)

    engine.pass_time(10.0, has_work=False)
    assert engine.is_stalled()

    engine.make_step()
    assert not engine.is_stalled()
    engine.pass_time(10.0)
    assert not engine.is_stalled()


def test_long_engine_stall_requests_a_replacement() -> None:
    """The time counts from the detection of the stall, with or without work."""
    engine = _Engine().warm_up()
    engine.pass_time(20.0)
    found_s = engine.watch.stalled_s
    assert found_s is not None

    engine.pass_time(59.0 - found_s, has_work=False)
    assert not engine.watch.is_lasting

    engine.pass_time(1.5, has_work=False)
    assert engine.watch.is_lasting


def test_idle_engine_is_never_stalled() -> None:
    """A lease whose payload has not arrived gives the engine no work."""
    engine = _Engine().warm_up()

    engine.pass_time(3_600.0, has_work=False)
    assert not engine.is_stalled()

    engine.pass_time(10.0)
    assert not engine.is_stalled()


def test_engine_steps_without_tokens_are_no_stall() -> None:
    """Prefill of long prompts takes steps that produce no tokens."""
    engine = _Engine().warm_up()

    for _ in range(20):
        engine.make_step(lasts_s=10.0)
        assert not engine.is_stalled()


def test_stall_limit_grows_with_the_duration_of_engine_steps() -> None:
    """After a step of 8 s for a large prompt, the next one may take several times as long."""
    engine = _Engine().warm_up()
    engine.make_step(lasts_s=8.0)

    engine.pass_time(15.0 + 5 * 8.0 - 1.0)
    assert not engine.is_stalled()

    engine.pass_time(4.0)
    assert engine.is_stalled()


def test_first_engine_steps_do_not_raise_the_stall_limit() -> None:
    engine = _Engine()
    engine.make_step(lasts_s=55.0)
    assert not engine.is_stalled()
    assert 60.0 == engine.watch.limit_s

    engine.warm_up()
    engine.pass_time(20.0)
    assert engine.is_stalled()


def test_long_engine_step_taken_for_a_stall_raises_the_limit() -> None:
    """With a fixed limit, a call with long steps would be revoked each time and never end."""
    engine = _Engine().warm_up()
    engine.make_step(lasts_s=40.0)
    assert not engine.is_stalled()

    engine.make_step(lasts_s=100.0)
    engine.pass_time(100.0)
    assert not engine.is_stalled()


@pytest.mark.parametrize("stopped_s", [10.0, 40.0])
def test_suspension_of_the_process_does_not_count_as_an_engine_step(stopped_s: Seconds) -> None:
    """A second suspension of the process must be detected as quickly as the first."""
    engine = _Engine().warm_up()
    limit_s = engine.watch.limit_s
    engine.suspended = "process 7"
    engine.pass_time(stopped_s)
    engine.suspended = ""
    engine.make_step()

    assert limit_s == engine.watch.limit_s


@pytest.mark.parametrize(("suspended", "hangs"), [("", True), ("process 7", False)])
def test_stall_caused_by_a_signal_is_not_a_hang(suspended: str, hangs: bool) -> None:
    """A stop signal from outside explains the stall, so no inference counts as its cause."""
    engine = _Engine(suspended=suspended).warm_up()
    assert not engine.watch.hangs

    engine.pass_time(20.0)
    assert hangs == engine.watch.hangs

    engine.make_step()
    assert not engine.watch.hangs


def test_long_engine_step_raises_the_stall_limit_only_temporarily() -> None:
    """A step that compiled a kernel does not excuse a stall hours later."""
    engine = _Engine().warm_up()
    engine.make_step(lasts_s=10.0)
    assert engine.watch.limit_s > 60.0

    for _ in range(3):
        engine.pass_time(700.0, has_work=False)
        engine.make_step()

    assert engine.watch.limit_s < 20.0


def test_blocked_event_loop_does_not_count_as_an_engine_stall() -> None:
    """The replica's event loop has not yet seen the steps that the engine made."""
    engine = _Engine().warm_up()

    for _ in range(3):
        engine.pass_time(30.0, look_s=30.0)
        assert not engine.is_stalled()
    engine.make_step()

    assert engine.watch.limit_s < 40.0  # The suspension was not counted as a step of 90 s.
