"""The tables of states: every move is made by the core, and no other can be."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.entities import Application, Inference, Outcome, move
from justitia_ray.core.states import (
    APPLICATION_TRANSITIONS,
    TRANSITIONS,
    ApplicationState,
    InferenceState,
    InvalidTransition,
)
from tests.core_driver import CoreDriver, ended

_PAIRS = list(itertools.product(InferenceState, InferenceState))
_APPLICATION_PAIRS = list(itertools.product(ApplicationState, ApplicationState))


def _create_inference(state: InferenceState) -> Inference:
    return Inference("r7", "a", "0", "i0", 1, 1, 1, 1, 0.0, 1, state=state)


def _create_application(state: ApplicationState) -> Application:
    return Application("a7", "class", "tenant", 1, 100, "i0", 0.0, 1, state=state)


@pytest.mark.parametrize(("start", "finish"), list(TRANSITIONS))
def test_allowed_state_transitions_of_an_inference_are_made(
    start: InferenceState, finish: InferenceState
) -> None:
    inference = _create_inference(start)
    move(inference, finish)

    assert finish is inference.state


@pytest.mark.parametrize(("start", "finish"), [pair for pair in _PAIRS if pair not in TRANSITIONS])
def test_forbidden_state_transitions_of_an_inference_are_refused(
    start: InferenceState, finish: InferenceState
) -> None:
    """A second end, or a grant of a running inference, is a bug that must raise."""
    inference = _create_inference(start)
    told = f"inference r7 of application a cannot go from {start} to {finish}"
    with pytest.raises(InvalidTransition, match=told):
        move(inference, finish)

    assert start is inference.state


@pytest.mark.parametrize(
    ("start", "finish"),
    [pair for pair in _APPLICATION_PAIRS if pair not in APPLICATION_TRANSITIONS],
)
def test_forbidden_state_transitions_of_an_application_are_refused(
    start: ApplicationState, finish: ApplicationState
) -> None:
    application = _create_application(start)
    with pytest.raises(
        InvalidTransition, match=f"application a7 cannot go from {start} to {finish}"
    ):
        application.move(finish, 1.0)

    assert (start, ()) == (application.state, application.story)


def test_error_of_a_forbidden_transition_lists_the_last_states() -> None:
    application = _create_application(ApplicationState.OPENING)
    application.move(ApplicationState.IDLE, 1.0)
    for at in range(2, 9):
        busy = at % 2 == 0
        application.move(ApplicationState.OPEN if busy else ApplicationState.IDLE, at / 2)

    with pytest.raises(InvalidTransition) as refused:
        application.move(ApplicationState.STOPPED, 5.25)

    assert str(refused.value) == (
        "application a7 cannot go from open to stopped at 5.250; its last states: "
        "idle at 1.000, open at 1.000, idle at 1.500, open at 2.000, idle at 2.500, open at 3.000, "
        "idle at 3.500, open at 4.000"
    )


def test_ended_applications_and_inferences_change_their_state_no_more() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] is InferenceState.ENDED]
    assert not [pair for pair in APPLICATION_TRANSITIONS if pair[0] is ApplicationState.ENDED]


# Tests of state transitions that events cause

_ARRIVAL = ev.ApplicationArrived("a", "class", "tenant", 1, 1000, "i0", keeps_ends=True)
_END = ev.InferenceSubmitted(
    "e", "a", "e", "i0", 10, 10, 10, lease_id="1-9", is_counted=False, resubmitted=True,
    outcome=Outcome.FINISHED,
)  # fmt: skip


def _restart_scheduler(d: CoreDriver) -> None:
    """Replace the scheduler by one that restores the stored state."""
    d.hand_over(SchedulerCore(lease_prefix="2-"))


def _wait_with_heartbeats(d: CoreDriver, seconds: int) -> None:
    """Advance the time while the ingress sends heartbeats."""
    for _ in range(seconds // 10):
        d.now += 10.0
        d.handle(ev.IngressHeartbeat("i0"))


_STEPS: dict[str, Callable[[CoreDriver], object]] = {
    "open": lambda d: d.handle(_ARRIVAL),
    "open for 5 s": lambda d: d.handle(replace(_ARRIVAL, idle_s=5.0)),
    "open without ends": lambda d: d.handle(replace(_ARRIVAL, keeps_ends=False)),
    "submit": lambda d: d.submit("x"),
    "submit again": lambda d: d.submit("x", resubmitted=True),
    "bring an end": lambda d: d.handle(_END),
    "leave": lambda d: d.handle(ev.InferenceCancelled("x")),
    "grant": lambda d: d.pull(),
    "last word": lambda d: d.last_word("1"),
    "close": lambda d: d.handle(ev.ApplicationClosed("a")),
    "cancel": lambda d: d.handle(ev.ApplicationCancelled("a")),
    "reopen": lambda d: d.handle(ev.ApplicationReopened("a")),
    "restart": _restart_scheduler,
    "ingress has come": lambda d: d.handle(ev.Resubmitted("i0")),
    "30 s": lambda d: _wait_with_heartbeats(d, 30),
    "600 s": lambda d: _wait_with_heartbeats(d, 600),
}
_WAYS: dict[str, str] = {
    "open, submit, leave, 600 s": "idle open idle ended",
    "open, submit, close, reopen, close, leave": "idle open closing open closing ended",
    "open, submit, grant, cancel, last word": "idle open stopping ended",
    "open, cancel": "idle stopped ended",
    "open, restart, submit": "idle recovering open",
    "open, restart, 30 s, close, reopen, close, cancel, bring an end, ingress has come": (
        "idle recovering idle closed idle closed stopped stopping stopped ended"
    ),
    "open, restart, close, reopen, close, cancel, 30 s, 600 s": (
        "idle recovering closing recovering closing stopping stopped ended"
    ),
    "open, restart, cancel, ingress has come": "idle recovering stopping ended",
    "open for 5 s, restart, 30 s": "idle recovering ended",
    "open without ends, submit, close, restart, 30 s": (
        "idle open closing recovering closing ended"
    ),
    "open, submit, close, restart, 30 s, submit again, leave, ingress has come": (
        "idle open closing recovering closing closed closing closed ended"
    ),
}


@pytest.fixture
def state_transitions(
    monkeypatch: pytest.MonkeyPatch,
) -> list[tuple[ApplicationState, ApplicationState]]:
    """Return the list of all state transitions of applications during a test."""
    made: list[tuple[ApplicationState, ApplicationState]] = []
    real = Application.move

    def record_transition(self: Application, finish: ApplicationState, now: float) -> None:
        made.append((self.state, finish))
        real(self, finish, now)

    monkeypatch.setattr(Application, "move", record_transition)
    return made


@pytest.mark.parametrize("steps", list(_WAYS))
def test_events_move_an_application_through_all_its_states(
    steps: str, state_transitions: list[tuple[ApplicationState, ApplicationState]]
) -> None:
    driver = CoreDriver()
    for step in steps.split(", "):
        _STEPS[step](driver)

    assert _WAYS[steps].split() == [finish.value for _, finish in state_transitions]


def test_every_allowed_transition_is_made_by_the_core(
    state_transitions: list[tuple[ApplicationState, ApplicationState]],
) -> None:
    """A state that no event leads to must not be in the table."""
    for steps in _WAYS:
        driver = CoreDriver()
        for step in steps.split(", "):
            _STEPS[step](driver)

    assert set(APPLICATION_TRANSITIONS) == set(state_transitions)


def test_application_cancelled_after_its_ingress_is_lost_ends_as_cancelled() -> None:
    driver = CoreDriver()
    for step in ("open for 5 s", "restart", "cancel"):
        _STEPS[step](driver)

    assert [("a", "cancelled")] == ended(driver.wait(5.0))


@pytest.mark.parametrize(
    ("state", "told"),
    [(state, "open") for state in ApplicationState if state.takes_inferences]
    + [(state, "closing") for state in ApplicationState if not state.takes_inferences],
)
def test_api_and_store_show_two_public_states_of_an_application(
    state: ApplicationState, told: str
) -> None:
    """Earlier releases know only two states, as clients and as readers of the store."""
    assert told == state.public_name
