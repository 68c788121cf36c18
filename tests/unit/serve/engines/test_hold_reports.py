"""Reports of held contexts: due at intervals, at once before an idle time, and true after it."""

import pytest

from justitia_ray.protocol.engine import KeptKv
from justitia_ray.serve.engines.hold_reports import HeldKv, HoldReports
from justitia_ray.units import Seconds
from tests.unit.serve.engines.test_held_contexts import ContextEngine

_BLOCK = 16
_SOON_S = 0.01


class ReportingEngine(ContextEngine):
    """Engine with a clock on which each count of the held blocks takes `count_s`."""

    def __init__(self) -> None:
        super().__init__()
        self.count_s = 0.0
        self.reports = HoldReports(self.held, _BLOCK, self._read_clock)
        self.kept = HeldKv()
        self._readings = 0

    def _read_clock(self) -> Seconds:
        """Return the time; every second reading follows a count."""
        self._readings += 1
        if self._readings % 2 == 0:
            self.now += self.count_s
        return self.now

    def step(self, *, is_idle: bool = False) -> bool:
        """End an iteration; return whether it sent a report."""
        self._readings = 0
        report = self.reports.next_report(is_idle=is_idle)
        if report is not None:
            self.kept.note(report)
        return report is not None


@pytest.fixture
def engine() -> ReportingEngine:
    return ReportingEngine()


def test_held_contexts_are_unknown_before_the_first_report(engine: ReportingEngine) -> None:
    assert KeptKv() == engine.kept.read(0.0)
    assert engine.step()
    assert KeptKv(held_contexts=0, held_kv_tokens=0) == engine.kept.read(0.0)


def test_engine_reports_the_tokens_of_each_held_context(engine: ReportingEngine) -> None:
    engine.run_call("x", "y", "z", application="a", for_s=3.0)
    engine.run_call("x", "u", application="b", for_s=5.0)
    engine.step()

    assert KeptKv(held_contexts=2, held_kv_tokens=4 * _BLOCK) == engine.kept.read(0.0)


def test_idle_engine_counts_no_held_context_after_the_last_expiry(engine: ReportingEngine) -> None:
    """An idle engine, and one that has died, sends no further report."""
    engine.run_call("x", "y", "z", application="a", for_s=3.0)
    engine.run_call("x", "u", application="b", for_s=5.0)
    engine.step()

    assert KeptKv(held_contexts=1, held_kv_tokens=2 * _BLOCK) == engine.kept.read(3.0)
    assert KeptKv(held_contexts=0, held_kv_tokens=0) == engine.kept.read(5.0)


def test_busy_engine_reports_held_contexts_at_intervals(engine: ReportingEngine) -> None:
    engine.step()
    engine.run_call("x", application="a", for_s=100.0)
    engine.now = 0.2
    assert not engine.step()
    engine.now = 0.25
    assert engine.step()
    engine.now = 0.4
    assert not engine.step()
    engine.now = 0.5
    assert engine.step(), "blocks may have been evicted"


def test_held_contexts_are_reported_before_the_engine_becomes_idle(engine: ReportingEngine) -> None:
    engine.step()
    engine.run_call("x", application="a", for_s=100.0)
    engine.now = _SOON_S

    assert engine.step(is_idle=True)
    assert KeptKv(held_contexts=1, held_kv_tokens=_BLOCK) == engine.kept.read(engine.now)


def test_idle_engine_does_not_report_evicted_contexts_as_held(
    engine: ReportingEngine,
) -> None:
    """An idle engine makes no iteration in which it could send the next report."""
    engine.run_call("x", "y", application="a", for_s=100.0)
    engine.step()
    engine.run_call(*"abcdefghijklmnopqrst")  # the whole pool
    engine.now = _SOON_S

    assert not engine.step()
    assert engine.step(is_idle=True)
    assert KeptKv(held_contexts=0, held_kv_tokens=0) == engine.kept.read(engine.now)


def test_engine_without_held_contexts_sends_one_report(engine: ReportingEngine) -> None:
    sent = []
    for _ in range(10):
        engine.now += 1.0
        sent.append(engine.step())
        engine.run_call("single")

    assert [True, *[False] * 9] == sent


def test_engine_reports_the_end_of_all_holds(engine: ReportingEngine) -> None:
    engine.run_call("x", application="a", for_s=100.0)
    engine.step()
    engine.held.release("a")
    engine.now = 1.0

    assert engine.step()
    assert KeptKv(held_contexts=0, held_kv_tokens=0) == engine.kept.read(1.0)


def test_counting_held_contexts_takes_at_most_one_percent_of_the_time(
    engine: ReportingEngine,
) -> None:
    """A count of 0.01 s is repeated after one second."""
    engine.count_s = 0.01
    engine.run_call("x", application="a", for_s=100.0)
    assert engine.step()
    engine.now = 0.9
    assert not engine.step()
    engine.now = 1.1
    assert engine.step()


def test_counting_held_blocks_does_not_reorder_the_free_blocks(engine: ReportingEngine) -> None:
    engine.run_call("x", "y", application="a", for_s=100.0)
    before = list(engine.pool.queue)

    for _ in range(3):
        engine.now += 1.0
        engine.step()

    assert before == engine.pool.queue
