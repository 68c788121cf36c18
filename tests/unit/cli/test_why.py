"""`justitia why` and `justitia top`: a caller's view of the queue."""

from typing import Any

import pytest

from justitia_ray.cli.main import main
from justitia_ray.cli.why import duration_text
from tests.unit.cli.noting_service import Sent, recording_service

_OUTLOOK: dict[str, Any] = {
    "reason": "turn",
    "what_would_help": "time: others come first",
    "position": 7,
    "position_is_least": False,
    "ahead_kv_token_time": 48_000.0,
    "expected_start_s": {"p10": 3.0, "p50": 6.0, "p90": 12.0},
    "expected_finish_s": {"p10": 30.0, "p50": 60.0, "p90": 400.0},
    "guaranteed_by_s": 7500.0,
}
_VIEW: dict[str, Any] = {
    "application_id": "report-17",
    "application_class": "report",
    "tenant": "acme",
    "state": "open",
    "waiting": 3,
    "running": 0,
    "outlook": _OUTLOOK,
}
_LISTING: dict[str, Any] = {
    "models": {
        "m": {
            "applications": [_VIEW | {"application_id": "acme|report-17"}],
            "own": {"applications": 1, "waiting": 3, "running": 0},
            "others": {"applications": 40, "waiting": 900, "running": 12},
        }
    }
}


def test_why_explains_the_wait_of_an_application(capsys: pytest.CaptureFixture[str]) -> None:
    sent: list[Sent] = []
    with recording_service((200, _VIEW), sent) as url:
        assert 0 == main(["why", "report-17", "--url", url])
    text = capsys.readouterr().out

    assert ("GET", "/v1/applications/report-17", None) == sent[0]
    assert "reason        turn\n" in text
    assert "would help    time: others come first\n" in text
    assert "before it     7 applications, 48,000 token·iterations\n" in text
    assert "starts in     6.0 s by half; 3.0 s to 12 s in 8 of 10 cases\n" in text
    assert "ends in       60 s by half; 30 s to 7 min in 8 of 10 cases\n" in text
    assert "guaranteed by 2.1 h, at this speed\n" in text


def test_why_and_top_print_how_long_a_full_replica_delays_an_application(
    capsys: pytest.CaptureFixture[str],
) -> None:
    remedy = "time: its context lies on R2, which is full for 0.8 s"
    outlook = _OUTLOOK | {"reason": "context:R2", "what_would_help": remedy, "context_full_s": 0.84}
    view = _VIEW | {"outlook": outlook}
    listing = {"models": {"m": _LISTING["models"]["m"] | {"applications": [view]}}}
    with recording_service((200, view)) as url:
        assert 0 == main(["why", "report-17", "--url", url])
    with recording_service((200, listing)) as url:
        assert 0 == main(["top", "--url", url])
    text = capsys.readouterr().out

    assert "reason        context:R2\n" in text
    assert f"would help    {remedy}\n" in text
    assert "context:R2, full for 0.8 s" in text


def test_top_shows_the_memory_that_an_application_lacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outlook = _OUTLOOK | {"reason": "working_set", "missing_kv_tokens": 41_000}
    view = _VIEW | {"outlook": outlook}
    listing = {"models": {"m": _LISTING["models"]["m"] | {"applications": [view]}}}
    with recording_service((200, listing)) as url:
        assert 0 == main(["top", "--url", url])

    assert "working_set, 41,000 tokens short" in capsys.readouterr().out


def test_top_shows_the_cached_share_of_an_applications_prompts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An application without an ended inference has no share."""
    ended = _VIEW | {"prompt_tokens": 2_000, "cached_prompt_tokens": 1_640}
    new = _VIEW | {"application_id": "acme|new"}
    listing = {"models": {"m": _LISTING["models"]["m"] | {"applications": [ended, new]}}}
    with recording_service((200, listing)) as url:
        assert 0 == main(["top", "--url", url])
    head, *rows = capsys.readouterr().out.splitlines()[-3:]

    place = head.split().index("cached") - 1  # "before it" is one column
    assert ["82%", "–"] == [row.split()[place] for row in rows]


def test_why_command_explains_an_application_for_each_of_its_models(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An application may run at one model and wait at another."""
    runs = _VIEW | {"outlook": _OUTLOOK | {"reason": "running", "position": None}}
    view = _VIEW | {"outlook": None, "models": {"m": _VIEW, "n": runs}}
    with recording_service((200, view)) as url:
        assert 0 == main(["why", "report-17", "--url", url])
    text = capsys.readouterr().out

    assert text.index("model         m\n") < text.index("reason        turn")
    assert text.index("model         n\n") < text.index("reason        running")


def test_why_reports_when_a_quota_refills(capsys: pytest.CaptureFixture[str]) -> None:
    """A refused application is shown until its quota refills."""
    outlook = dict.fromkeys(_OUTLOOK) | {
        "position_is_least": False,
        "reason": "quota:acme",
        "what_would_help": "the next period of the quota",
        "quota_comes_back_s": 720.0,
    }
    view = _VIEW | {"state": "refused", "waiting": 0, "outlook": outlook}
    with recording_service((200, view)) as url:
        assert 0 == main(["why", "report-17", "--url", url])
    text = capsys.readouterr().out

    assert "state         refused; 0 waiting, 0 running\n" in text
    assert "reason        quota:acme\n" in text
    assert text.endswith("quota back    in 12 min\n")


def test_why_command_finds_no_application_of_another_tenant(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Another tenant's application gives the same answer as an unknown id."""
    error = {"error": {"message": "application 'x' is not open", "code": "application_not_found"}}
    with recording_service((404, error)) as url:
        assert 1 == main(["why", "x", "--url", url])

    assert "not open" in capsys.readouterr().err


def test_top_command_lists_own_applications_and_counts_foreign_applications(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sent: list[Sent] = []
    with recording_service((200, _LISTING), sent) as url:
        assert 0 == main(["top", "--url", url, "--applications", "5"])
    text = capsys.readouterr().out

    assert ("GET", "/v1/applications?most=5", None) == sent[0]
    assert "others: 40 applications, 900 inferences waiting, 12 running" in text
    [row] = [line for line in text.splitlines() if line.startswith("report-17")]
    assert ["report-17", "acme", "report", "open", "turn", "7", "3", "0"] == row.split()[:8]
    assert "3.0 s to 12 s" in row


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (["top", "--applications", "-1"], "--applications is -1"),
        (["top", "--watch", "0"], "--watch is 0"),
        (["why", "a", "--watch", "-3"], "--watch is -3"),
    ],
)
def test_invalid_option_is_reported_without_a_request(
    options: list[str], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == main(options)
    assert wrong in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "text"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (37.4, "37 s"), (720, "12 min")]
)
def test_durations_are_printed_in_readable_units(value: float, text: str) -> None:
    assert text == duration_text(value)
