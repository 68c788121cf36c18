"""History of virtual time V: when V reached each level that may still be asked for."""

from justitia_ray.core.service_history import Level, ServiceHistory, StartDelay
from tests.core_driver import CoreDriver
from tests.exact import exact


def _history_of_reports(reports: int) -> ServiceHistory:
    history = ServiceHistory()
    history.begin(exact(0))
    history.record_service_restart(0.0)
    for number in range(1, reports + 1):
        history.note_service(exact(10), exact(number), float(number))
    return history


def test_service_history_returns_when_virtual_time_reached_a_value() -> None:
    history = _history_of_reports(3)

    assert history.reached(exact(2)) == Level(10, 1.0, 10)
    assert history.reached(exact(3, 2)) == Level(10, 1.0, 10)
    assert history.reached(exact(4)) is None
    assert (history.knows(exact(0)), history.knows(exact(1))) == (False, True)
    assert (history.served, history.busy_s) == (30, 3.0)


def test_refund_moves_only_virtual_time_in_the_service_history() -> None:
    history = _history_of_reports(1)
    history.note_service(0, exact(7), 4.0)
    history.note_service(0, exact(7), 5.0)

    assert history.reached(exact(5)) == Level(10, 4.0, 0)
    assert (history.served, history.busy_s) == (10, 1.0)


def test_service_history_excludes_idle_time() -> None:
    history = _history_of_reports(1)
    history.record_service_restart(50_000.0)
    history.note_service(exact(10), exact(2), 50_001.0)

    assert history.reached(exact(2)) == Level(10, 50_000.0, 10)
    assert history.busy_s == 2.0


def test_shortened_service_history_returns_the_same_times() -> None:
    """The history keeps every entry that a live application needs."""
    thinned, whole = _history_of_reports(200), _history_of_reports(200)
    assert (thinned.is_long(30), thinned.is_long(40)) == (True, False)
    thinned.keep_finish_levels([exact(3, 2), exact(77), exact(900)])
    for history in (thinned, whole):
        history.note_service(exact(10), exact(201), 201.0)

    for tag in (exact(3, 2), exact(77), exact(401, 2), exact(201), exact(300)):
        assert whole.reached(tag) == thinned.reached(tag)
    assert not thinned.is_long(0)


def test_lag_of_a_start_is_the_service_since_virtual_time_reached_its_tag() -> None:
    history = _history_of_reports(3)

    assert history.late((30, 3.0), exact(2), 3.0) == StartDelay(20, 2.0, 10)
    assert history.late((0, 0.0), exact(2), 3.0) == StartDelay(-10, -1.0, 10)
    assert history.late((30, 3.0), exact(4), 3.0) == StartDelay(0, 0.0, 0)
    assert history.late((20, 2.0), exact(4), 3.0) == StartDelay(-10, -1.0, 0)
    assert history.late((30, 3.0), exact(0), 3.0) is None


def test_service_history_of_a_long_run_stays_short(core: CoreDriver) -> None:
    core.open("endless", 10**6)
    core.submit("e", "endless", prompt=1, output=1400)
    core.pull(kv=1500)
    for made in range(1, 400):
        core.pull(progress={"1": made}, kv=1500)

    assert len(core.core.ledger.history) <= 64 + 4 + 1
