"""The life of applications: opened, idle, closed, cancelled, expired, used again."""

import itertools
from math import inf, nan

import pytest

from justitia_ray.core import events as ev
from justitia_ray.core.actions import EndApplication, ForgetApplication, Lag
from justitia_ray.core.entities import Outcome
from justitia_ray.core.stages import StageServed
from justitia_ray.core.states import ApplicationState
from tests.core_driver import CoreDriver, aborted, ended, granted, refused


def test_second_opening_of_an_application_only_changes_its_ingress(core: CoreDriver) -> None:
    core.open("a", 100)
    core.core.take_changed()

    assert core.open("a", 5, weight=9, ingress_id="i1") == []
    assert (core.core.tag("a"), core.application().ingress_id, core.application().weight) == (
        100,
        "i1",
        1,
    )
    assert core.core.take_changed() == ["a"]


def test_opening_a_live_application_returns_its_finish_tag(core: CoreDriver) -> None:
    """The tag is known before the first inference and while the application is idle."""
    with pytest.raises(KeyError):
        core.core.tag("a")

    core.pull()
    core.open("a", 100, weight=4)
    assert core.core.tag("a") == 25
    core.pull()
    assert core.core.tag("a") == 25


def test_closed_idle_application_ends_at_once(core: CoreDriver) -> None:
    core.open("a", 155)
    core.submit("x")
    core.pull()
    core.now += 2.0
    core.pull(finished={"1": 10})
    core.now += 1.0
    actions = core.handle(ev.ApplicationClosed("a"))

    expected = EndApplication(
        application_id="a",
        application_class="class",
        tenant="tenant",
        ingress_id="i0",
        outcome=Outcome.FINISHED,
        predicted_kv_token_time=155,
        kv_token_time=155,
        virtual_finish_time=155,
        arrived_at=100.0,
        first_dispatched_at=100.0,
        ended_at=103.0,
        inferences=1,
        failed=0,
        output_tokens=10,
        prompt_tokens=10,
        settlements=0,
        lag=Lag(0, 0.0, None, None),
        stages=(StageServed(1, 1, 10, 10, 155, 10, 0.0),),
    )

    assert [expected] == actions
    assert ended(actions) == [("a", "finished")]
    assert (core.core.state.applications, core.core.ledger.fair_share.accounts) == ({}, {})


def test_end_of_an_application_reports_the_finish_tag_of_its_true_cost(core: CoreDriver) -> None:
    """The lag behind GPS is measured with the cost really used, not the charged one.

    With b beside it, 36 of service are 18 of V; of its 155 the 119 unused are refunded.
    """
    core.open("a", 155)
    core.open("b", 500)
    core.submit("x", "a")
    core.submit("y", "b")
    core.handle(ev.ApplicationClosed("a"))
    core.pull()
    (end,) = core.pull(progress={"2": 0}, finished={"1": 3})

    assert isinstance(end, EndApplication)
    assert (
        end.virtual_finish_time,
        end.kv_token_time,
        core.core.ledger.fair_share.clock.virtual_time,
    ) == (36, 36, 18)


def test_closed_application_ends_with_its_last_inference(core: CoreDriver) -> None:
    core.open()
    core.submit("x")
    core.submit("y")
    core.pull(seats=1)

    assert core.handle(ev.ApplicationClosed("a")) == []
    assert ApplicationState.CLOSING is core.application().state
    assert refused(core.submit("z")) == [("z", "application_closed")]
    assert granted(core.pull(finished={"1": 10}, seats=1)) == ["y"]
    assert ended(core.pull(finished={"2": 10}, seats=1)) == [("a", "finished")]
    assert core.handle(ev.ApplicationClosed("a")) == []


def test_reopened_application_accepts_further_inferences(
    core: CoreDriver,
) -> None:
    core.open()
    core.submit("x")
    core.pull(seats=1)
    core.handle(ev.ApplicationClosed("a"))
    core.handle(ev.ApplicationReopened("a"))

    assert refused(core.submit("z")) == []
    assert granted(core.pull(finished={"1": 10}, seats=1)) == ["z"]
    assert ended(core.pull(finished={"2": 10}, seats=1)) == []
    assert core.application().state is ApplicationState.IDLE


def test_closed_application_accepts_inferences_resubmitted_after_a_restart(
    core: CoreDriver,
) -> None:
    """After a restart an ingress repeats the submissions that it made before the close."""
    core.open()
    core.submit("x")
    core.handle(ev.ApplicationClosed("a"))

    assert core.submit("y", resubmitted=True) == []
    assert core.waiting() == ["x", "y"]


def test_cancelled_application_stops_all_its_inferences(core: CoreDriver) -> None:
    """Waiting inferences are refused, running ones aborted, all in a fixed order."""
    core.open()
    for name in ("x", "y", "z"):
        core.submit(name)
    core.pull(seats=2)
    core.handle(ev.ApplicationClosed("a"))
    actions = core.handle(ev.ApplicationCancelled("a"))

    reason = "application_cancelled"

    assert [("z", reason), ("x", reason), ("y", reason)] == refused(actions)
    assert (aborted(actions), ended(actions)) == (["1", "2"], [])
    assert ended(core.last_word("1", "2")) == [("a", "cancelled")]
    assert core.handle(ev.ApplicationCancelled("a")) == []
    assert refused(core.submit("w")) == [("w", "unknown_application")]


def test_cancellation_refunds_unused_service(core: CoreDriver) -> None:
    """GPS serves the other applications as if the unused service had never been charged."""
    core.open("a", 155)
    core.open("b", 500)
    core.submit("x", "a")
    core.submit("y", "b")
    core.pull()
    core.pull(progress={"1": 3, "2": 0})
    core.handle(ev.ApplicationCancelled("a"))
    core.last_word("1", output=3)
    clock = core.core.ledger.fair_share.clock

    assert (clock.virtual_time, clock.session("b").finish) == (18, 18 + 482)
    assert clock.session("a").finish == 36


def test_open_application_without_inferences_expires(core: CoreDriver) -> None:
    """An application opened by its first request is never closed by its caller."""
    core.open()
    core.wait(599.0)

    assert list(core.core.state.applications) == ["a"]
    assert ended(core.wait(1.0)) == [("a", "expired")]


def test_idle_time_of_an_application_starts_when_its_last_inference_ends(core: CoreDriver) -> None:
    core.open()
    core.now += 400.0
    core.pull()
    core.submit("x")
    core.pull(finished={"1": 5})

    assert ended(core.wait(300.0)) == []
    assert ended(core.wait(299.0)) == []
    assert ended(core.wait(1.0)) == [("a", "expired")]


@pytest.mark.parametrize("idle_s", [5.0, 5_000.0])
def test_idle_limit_of_an_application_replaces_the_common_limit(
    core: CoreDriver, idle_s: float
) -> None:
    """The limit may be shorter or longer than the default, and holds after each inference."""
    core.open("other")
    core.open("a", idle_s=idle_s)
    core.wait(idle_s - 1.0)
    core.submit("x")
    core.pull()
    core.pull(finished={"1": 5})

    assert [] == ended(core.wait(idle_s - 1.0))
    assert [("a", "expired")] == ended(core.wait(1.0))


def test_second_opening_keeps_the_recognition_rule_and_idle_limit(core: CoreDriver) -> None:
    """The first recognition rule stays, whichever rule another ingress applies."""
    core.open("a", recognized_by="metadata", idle_s=30.0)
    core.open("b")
    for name in "ab":
        core.open(name, ingress_id="i1", recognized_by="conversation", idle_s=7.0)
    seen = [(core.application(n).recognized_by, core.application(n).idle_s) for n in "ab"]

    assert [("metadata", 30.0), ("", None)] == seen
    assert [] == ended(core.wait(29.0))
    assert [("a", "expired")] == ended(core.wait(1.0))


def test_end_of_an_application_names_its_recognition_rule(core: CoreDriver) -> None:
    """The rule is logged with each ended application."""
    core.open("a", recognized_by="claude-code")
    (end,) = core.handle(ev.ApplicationClosed("a"))

    assert isinstance(end, EndApplication)
    assert "claude-code" == end.recognized_by


@pytest.mark.parametrize("idle_s", [0.0, -1.0, inf, nan])
def test_infinite_or_zero_idle_limit_is_refused(idle_s: float) -> None:
    """No store holds infinity, and a record with 0 would stop the next scheduler."""
    with pytest.raises(ValueError, match=r"^idle_s is .*: a finite number > 0, or None"):
        ev.ApplicationArrived("a", "class", "t", 1.0, 100, "i0", idle_s=idle_s)


def test_application_with_inferences_does_not_expire_as_idle(core: CoreDriver) -> None:
    core.open()
    core.submit("x")
    for _ in range(60):
        core.now += 20.0
        core.handle(ev.IngressHeartbeat("i0"))

    assert core.waiting() == ["x"]


def test_idle_application_leaves_gps_until_its_next_inference(core: CoreDriver) -> None:
    """GPS gives an application no service during a tool gap."""
    core.open("a", 155)
    core.submit("x")
    core.pull()
    core.pull(finished={"1": 3})

    assert (
        core.account().withdrawn,
        core.core.ledger.fair_share.clock.active_weight,
    ) == (True, 0)

    core.submit("y")

    assert (core.account().withdrawn, core.core.tag("a")) == (False, 36 + 119)


def test_weight_change_changes_the_queue_place_and_tag_of_an_application(core: CoreDriver) -> None:
    core.open("a", 100)
    core.open("b", 1000)
    core.submit("x", "a")
    core.submit("y", "b")
    core.handle(ev.WeightChanged("b", 20))
    core.handle(ev.WeightChanged("b", 20))
    core.handle(ev.WeightChanged("nobody", 20))

    assert core.core.tag("b") == 50
    assert granted(core.pull()) == ["y", "x"]


def test_reopened_application_id_inherits_the_debt_of_the_ended_application(
    core: CoreDriver,
) -> None:
    """An application must not lose its debt to GPS by ending and reusing its id."""
    core.open("b", 500)
    core.submit("y", "b")
    core.open("a", 155)
    core.submit("x", "a")
    core.handle(ev.ApplicationClosed("a"))
    core.pull()
    core.pull(progress={"2": 0}, finished={"1": 10})  # a is done, V = 77.5, F = 155

    core.open("a", 20, weight=2)

    assert core.core.tag("a") == 77.5 + 77.5 / 2 + 10

    core.submit("again", "a")
    core.pull(progress={"2": 20})
    core.handle(ev.ApplicationClosed("a"))
    core.handle(ev.InferenceCancelled("again"))
    core.last_word("3")

    assert list(core.core.state.applications) == ["b"]


def test_cancelling_an_application_returns_actions_in_a_fixed_order(core: CoreDriver) -> None:
    """The order of a set of strings differs between processes, but replays must be equal."""
    core.open()
    names = ["".join(pair) for pair in itertools.product("zyx", "cab")]
    for name in names:
        core.submit(name)
    core.pull()

    assert names == [name for name, _ in refused(core.handle(ev.ApplicationCancelled("a")))]


def test_every_ingress_of_an_application_is_notified_of_its_end(core: CoreDriver) -> None:
    """An ingress without the notice would keep the application open forever."""
    core.open(ingress_id="i0")
    core.open(ingress_id="i1")
    core.open(ingress_id="i0")
    actions = core.handle(ev.ApplicationClosed("a"))

    (end,) = [action for action in actions if isinstance(action, EndApplication)]
    assert "i0" == end.ingress_id
    assert ForgetApplication("a", "i1") in actions
    assert 2 == len(actions)
