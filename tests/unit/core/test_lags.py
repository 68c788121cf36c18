"""Lags and their bounds, by hand, as computed on request; no meter runs beside the core."""

import random
from typing import Any

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, EndApplication, Grant, Lag
from justitia_ray.core.service_history import ServiceHistory
from justitia_ray.units import KvTokenTime
from tests.core_driver import PATIENT, CoreDriver


def _mouse_behind_a_giant(
    policy: str = "justitia", options: dict[str, Any] | None = None
) -> CoreDriver:
    """Return a core where an application of cost 2 waits behind a running one of cost 931.

    The giant: 39 of prompt and 19 of output. Its first token is 40, the second 41, and so on.
    """
    driver = CoreDriver(SchedulerCore(policy, options, timeouts=PATIENT))
    driver.open("giant", 931)
    driver.submit("g", "giant", prompt=39, output=19)
    _report_and_pull(driver)
    driver.now += 1
    _report_and_pull(driver, progress={"1": 1})
    driver.open("mouse", 2)
    driver.submit("m", "mouse", prompt=1, output=1)
    return driver


def _report_and_pull(driver: CoreDriver, **reports: Any) -> list[Any]:
    return driver.pull(kv=58, seats=1, **reports)


def test_waiting_application_starts_at_the_latest_when_running_work_ends() -> None:
    core = _mouse_behind_a_giant()
    before = core.core.lag("mouse")
    core.now += 9
    _report_and_pull(core, progress={"1": 10})
    after = core.core.lag("mouse")

    assert before is not None
    assert (0, 0.0, 891) == (before.kv_token_time, before.seconds, before.bound_kv_token_time)
    assert after is not None
    assert (405, 9.0) == (after.kv_token_time, after.seconds)
    assert 405 + 486 + 2 == after.bound_kv_token_time
    per_s = core.core.outlooks.seconds_for(1)
    assert after.bound_s == pytest.approx(9.0 + (486 + 2) * per_s)


def test_lag_of_a_running_application_is_measured_at_its_last_start() -> None:
    core = _mouse_behind_a_giant()

    assert Lag(-40, -1.0, None, None) == core.core.lag("giant")


def test_end_of_an_application_reports_its_lag() -> None:
    core = _mouse_behind_a_giant()
    core.handle(ev.ApplicationClosed("mouse"))
    for made, ended in ((10, {}), (19, {"1": 19})):
        core.now += 9
        _report_and_pull(core, progress={} if ended else {"1": made}, finished=ended)
    core.now += 1
    (end,) = _report_and_pull(core, finished={"2": 1})

    assert isinstance(end, EndApplication)
    assert Lag(891, 18.0, None, None) == end.lag


def test_never_started_application_has_no_lag() -> None:
    core = CoreDriver(SchedulerCore())
    core.open("a", 100)

    assert core.core.lag("a") is None
    with pytest.raises(KeyError):
        core.core.lag("b")


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("fcfs", {}),
        ("justitia", {"fairness": "tenant"}),
        ("justitia", {"backfill": "unlimited"}),
        ("justitia-guarded", {}),
    ],
)
def test_policy_without_a_lag_bound_reports_only_the_lag(
    policy: str, options: dict[str, Any]
) -> None:
    lag = _mouse_behind_a_giant(policy, options).core.lag("mouse")

    assert lag is not None
    assert (None, None) == (lag.bound_kv_token_time, lag.bound_s)


@pytest.mark.parametrize(
    "options", [{"clock": "nominal"}, {"clock": "unsettled"}, {"cost": "compute"}]
)
def test_no_lag_is_reported_under_a_clock_other_than_service(options: dict[str, Any]) -> None:
    """Another clock has another rate or unit than the service."""
    assert _mouse_behind_a_giant("justitia", options).core.lag("mouse") is None


def test_lag_of_an_application_beyond_its_quota_is_unknown() -> None:
    core = _mouse_behind_a_giant("justitia", {"fairness": "tenant"})
    core.handle(ev.ApplicationDeprioritised("mouse", is_deprioritised=True))

    assert core.core.lag("mouse") is None


def test_restarted_scheduler_knows_no_lag_of_a_tag_reached_before_the_restart() -> None:
    core = _mouse_behind_a_giant()
    core.now += 9
    _report_and_pull(core, progress={"1": 10})
    core.hand_over(SchedulerCore(timeouts=PATIENT, lease_prefix="2-"))
    core.submit("m", "mouse", prompt=1, output=1, resubmitted=True)
    core.open("new", 5)
    core.submit("n", "new", prompt=1, output=1)

    assert core.core.lag("mouse") is None
    assert core.core.lag("new") is not None


def test_measured_lags_of_many_applications_are_cached_briefly() -> None:
    core = _mouse_behind_a_giant()
    for number in range(150):
        core.open(f"a{number}", 1000)
        core.submit(f"r{number}", f"a{number}", prompt=1, output=1)
    first = core.core.lag("mouse")
    core.now += 0.1
    _report_and_pull(core, progress={"1": 10})
    kept = core.core.lag("mouse")
    core.open("later", 2)
    core.submit("l", "later", prompt=1, output=1)
    later = core.core.lag("later")
    core.wait(0.1)
    anew = core.core.lag("mouse")

    assert first is not None
    assert kept is not None
    assert (891, 891) == (first.bound_kv_token_time, kept.bound_kv_token_time)
    assert later is not None
    assert 891 == later.bound_kv_token_time
    assert anew is not None
    assert anew.kv_token_time + 486 + 2 == anew.bound_kv_token_time


def _lags_at_the_end(monkeypatch: pytest.MonkeyPatch, *, thinned: bool) -> dict[str, KvTokenTime]:
    """Return the lags with which 60 applications of random size end on a full replica."""
    monkeypatch.setattr("tests.core_driver.check", lambda core: None)  # 3,000 events
    if not thinned:
        monkeypatch.setattr(ServiceHistory, "is_long", lambda history, applications: False)
    lots, driver = random.Random(0), CoreDriver(SchedulerCore("justitia", {}, "peak", PATIENT))
    lags: dict[str, KvTokenTime] = {}
    leases: dict[str, int] = {}

    def longest_output(request: str) -> int:
        return driver.inference(request).max_output_tokens

    def record_actions(actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Grant):
                leases[action.lease_id] = 0
            elif isinstance(action, EndApplication) and action.lag is not None:
                lags[action.application_id] = action.lag.kv_token_time

    record_actions(driver.pull(kv=2000, seats=8))
    opened = 0
    while opened < 60 or leases:
        driver.now += 0.1
        if opened < 60 and lots.random() < 0.05:
            name, opened = f"a{opened}", opened + 1
            driver.open(name, lots.choice((100, 1e3, 1e4, 1e5)), weight=lots.choice((1, 1, 4)))
            for number in range(lots.randint(1, 4)):
                request = f"{name}.{number}"
                prompt, output = lots.randint(5, 300), lots.randint(5, 60)
                record_actions(driver.submit(request, name, prompt=prompt, output=output))
            record_actions(driver.handle(ev.ApplicationClosed(name)))
        leases = {lease_id: tokens + 1 for lease_id, tokens in leases.items()}
        finished = {
            lease_id: tokens
            for lease_id, tokens in leases.items()
            if tokens >= longest_output(driver.core.state.leases[lease_id].request_id)
        }
        leases = {name: tokens for name, tokens in leases.items() if name not in finished}
        record_actions(driver.pull("r0", dict(leases), finished, kv=2000, seats=8))
    return lags


def test_lag_at_the_end_of_an_application_uses_the_whole_service_history(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thinned = _lags_at_the_end(monkeypatch, thinned=True)

    assert 60 == len(thinned)
    assert pytest.approx(_lags_at_the_end(monkeypatch, thinned=False)) == thinned
