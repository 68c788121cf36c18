"""Expected starts of applications that wait for contexts."""

from collections.abc import Sequence

import pytest

from justitia_ray.core import events as ev
from justitia_ray.core.outlook import Outlook
from justitia_ray.core.scheduler import SchedulerCore
from justitia_ray.core.start_forecast import served_until_starts
from tests.core_driver import PATIENT, CoreDriver, granted

KV = 10_000


def test_forecast_starts_the_next_application_when_the_first_running_one_ends() -> None:
    started = [(1_000, 100.0)] + [(1_000, 300.0)] * 3

    assert 400.0 == served_until_starts(4_000, started, [(1_000, 50.0)])[0]


def test_application_forecast_to_fit_at_once_delays_the_next() -> None:
    waiting = [(1_000, 900.0), (1, 1.0)]

    assert [0, 200.0] == served_until_starts(2_000, [(1_000, 100.0)], waiting)[:2]


def test_forecast_starts_a_waiting_application_when_another_ends() -> None:
    waiting = [(1_000, 100.0), (1_000, 100.0), (1_000, 100.0)]
    until = served_until_starts(2_000, [(1_000, 100.0), (1_000, 200.0)], waiting)

    assert [200.0, 400.0, 400.0] == until[:3]


def test_forecast_starts_an_oversized_application_after_all_others_end() -> None:
    started = [(1_000, 100.0), (1_000, 200.0)]

    assert 300.0 == served_until_starts(2_000, started, [(5_000, 1.0)])[0]
    assert 0 == served_until_starts(2_000, [], [(5_000, 1.0)])[0]


def core_with_idle_context(costs: Sequence[float] = (1e6, 2e6, 3e6, 4e6)) -> CoreDriver:
    """Return a core where `runs` has a lease and `idle` an idle context of 6,000 tokens."""
    driver = CoreDriver(SchedulerCore("justitia", {}, "peak", PATIENT))
    driver.pull(progress=None, kv=KV, caches=True)
    for name, cost in zip(("runs", "idle", "first", "second"), costs, strict=True):
        driver.open(name, cost)
    driver.submit("runs1", "runs", prompt=990)
    driver.submit("idle1", "idle", prompt=5_990)
    driver.now += 1.0
    driver.end("idle1", 5_990)
    driver.submit("first1", "first", prompt=3_000)
    driver.submit("second1", "second", prompt=10)
    return driver


def read_outlook(driver: CoreDriver, name: str) -> Outlook:
    return driver.core.outlooks.ask([name], now=driver.now)[name]


def test_forecast_of_the_first_application_waits_for_its_missing_tokens() -> None:
    outlook = read_outlook(core_with_idle_context(), "first")

    assert "working_set" == outlook.reason
    assert 1_010 == outlook.missing_kv_tokens
    assert outlook.expected_start_s is not None
    expected = f"expected in {outlook.expected_start_s.p50:.0f} s"
    remedy = f"time: it starts when 1,010 more KV tokens are free, {expected}"
    assert remedy == outlook.what_would_help


def test_forecast_start_waits_for_the_remaining_cost_of_started_applications() -> None:
    driver = core_with_idle_context()
    outlook = read_outlook(driver, "first")
    of_idle = 2e6 - driver.account("idle").attained

    assert 1e6 + of_idle == outlook.ahead_kv_token_time


def test_outlook_of_the_second_application_names_its_turn_as_the_reason() -> None:
    outlook = read_outlook(core_with_idle_context(), "second")

    assert ("turn", 1, None) == (outlook.reason, outlook.position, outlook.missing_kv_tokens)


def test_forecast_puts_a_returning_application_before_the_first_in_the_queue() -> None:
    driver = core_with_idle_context(costs=(10, 58_000, 60_000, 70_000))
    driver.submit("idle2", "idle", prompt=9_500)
    outlook = read_outlook(driver, "idle")

    assert driver.core.tag("idle") > driver.core.tag("first")
    assert (0, 0) == (outlook.position, outlook.ahead_kv_token_time)


def test_computing_an_outlook_changes_no_scheduling_decision() -> None:
    """An outlook must not prolong a cached refusal."""
    asked, silent = core_with_idle_context(), core_with_idle_context()
    for driver in (asked, silent):
        driver.now += 0.2
        if driver is asked:
            read_outlook(driver, "first")
        driver.now += 2.9

    ask = ev.ReplicaReported("r0", asks=True)
    assert ["first1", "second1"] == granted(silent.handle(ask)) == granted(asked.handle(ask))
    assert asked.core.ledger.gate is not None
    assert silent.core.ledger.gate is not None
    assert asked.core.ledger.gate._refused_at == silent.core.ledger.gate._refused_at


def test_no_forecast_is_made_while_contexts_delay_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = core_with_idle_context()
    driver.handle(ev.ApplicationClosed("idle"))
    driver.submit("second2", "second", prompt=9_000)
    outlook = read_outlook(driver, "second")

    assert driver.core.outlooks._forecasts is not None
    assert driver.core.outlooks._forecasts[1] is None
    assert outlook.missing_kv_tokens is None


def test_queue_position_is_computed_without_the_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waiting stream reports its position, which must not cost a walk over all contexts."""
    driver = core_with_idle_context()
    gate = driver.core.ledger.gate
    assert gate is not None
    monkeypatch.setattr(
        gate, "_counts_for_place", lambda *_: pytest.fail("the contexts are walked")
    )

    assert 0 == driver.core.outlooks.position(driver.inference("first1"))
