"""Rules that find the application of a call in its headers and fields."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.errors import RequestError
from justitia_ray.recognition.harnesses import HARNESSES, Harness
from justitia_ray.recognition.rules import DEFAULT_RULES, PERSONAL, Recognized, Recognizer
from justitia_ray.serve.ingress.submission import ApplicationSpec

OURS = Harness("ours", session=("x-run",), parent=("x-parent",), application_class="nightly")


def recognize_call(
    headers: dict[str, str], fields: dict[str, Any] | None = None, *more_rules: str
) -> Recognized | None:
    recognizer = Recognizer((*DEFAULT_RULES, *more_rules), [OURS], "justitia.application")
    return recognizer.recognize(headers, fields or {})


@pytest.mark.parametrize(
    ("headers", "fields", "rule", "application_id", "application_class"),
    [
        ({"x-justitia-application": "a/1"}, {}, "header", "a/1", None),
        ({}, {"metadata": {"application_id": "a/1"}}, "metadata", "a/1", None),
        ({}, {"metadata": {"session_id": "s-1"}}, "metadata", "metadata/s-1", None),
        ({"x-run": "7"}, {}, "ours", "ours/7", "nightly"),
        (
            {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "sub"},
            {},
            "claude-code",
            "claude-code/s",
            "claude-code",
        ),
        ({"session-id": "s", "thread-id": "s"}, {}, "codex", "codex/s", "codex"),
        ({"session_id": "s", "originator": "codex_cli_rs"}, {}, "codex", "codex/s", "codex"),
        ({"session_id": "s", "user-agent": "Codex Desktop/1"}, {}, "codex", "codex/s", "codex"),
        # Any client may use this name for its session.
        ({"session_id": "s"}, {}, "session-id", "session-id/s", None),
        ({"session-id": "s", "user-agent": "pi/1.6.0 (linux)"}, {}, "pi", "pi/s", "pi"),
        ({"x-session-affinity": "s", "user-agent": "pi/1.6.0"}, {}, "pi", "pi/s", "pi"),
        ({"x-session-id": "s"}, {}, "opencode", "opencode/s", "opencode"),
        ({"x-session-affinity": "s"}, {}, "opencode", "opencode/s", "opencode"),
        ({"x-dynamo-session-id": "s"}, {}, "dynamo", "dynamo/s", None),
        ({"x-litellm-trace-id": "t"}, {}, "litellm", "litellm/t", None),
        ({"baggage": "a=1, justitia.application=r%2F2;p=3"}, {}, "baggage", None, None),
        ({"baggage": "justitia.application=r2"}, {}, "baggage", "baggage/r2", None),
    ],
)
def test_harness_and_session_are_recognised_by_headers_and_fields(
    headers: dict[str, str],
    fields: dict[str, Any],
    rule: str,
    application_id: str | None,
    application_class: str | None,
) -> None:
    """Session ids of clients are replaced by a digest."""
    found = recognize_call(headers, fields)

    assert found is not None
    assert (rule, application_class) == (found.rule, found.application_class)
    assert application_id is None or application_id == found.application_id


def test_first_matching_recogn() -> None:
    headers = {"x-justitia-application": "a", "x-run": "7", "session-id": "s"}
    fields = {"metadata": {"session_id": "m"}, "user": "u"}
    orders = [("header", "user"), ("user", "header"), ("harness", "metadata"), ("headers",)]
    found = [Recognizer(rules, [OURS], "k").recognize(headers, fields) for rules in orders]

    assert ["header", "user", "session-id", "ours"] == [
        one.rule for one in found if one is not None
    ]


@pytest.mark.parametrize("field", PERSONAL)
def test_user_field_names_a_session_only_where_configured(field: str) -> None:
    """The field may be an e-mail address, so the application's id must not contain it."""
    assert recognize_call({}, {field: "ann@example.com"}) is None
    found = recognize_call({}, {field: "ann@example.com"}, field)
    again = recognize_call({}, {field: "ann@example.com"}, field)

    assert found == again
    assert found is not None
    assert "ann" not in found.application_id


@pytest.mark.parametrize("field", ["application_id", "session_id"])
@pytest.mark.parametrize(
    "value", ["Billing (prod) #3", "x" * 600, "Büro", "a|b", "a\nb", " ", "\ud800"]
)
def test_session_metadata_in_an_unknown_format_becomes_a_digest(field: str, value: str) -> None:
    """Users cannot change the metadata that their program sends."""
    found = recognize_call({}, {"metadata": {field: value}})
    other = recognize_call({}, {"metadata": {field: value + "x"}})

    assert found is not None
    assert other is not None
    assert re.fullmatch("metadata/[0-9a-f]{32}", found.application_id)
    assert found.application_id != other.application_id


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"metadata": None},
        {"metadata": "application_id"},
        {"metadata": {"application_id": 7, "session_id": ["s"]}},
        {"metadata": {"application_id": ""}},
        {"metadata": {"user_id": "somebody"}},
    ],
)
def test_metadata_without_a_session_is_ignored(fields: dict[str, Any]) -> None:
    assert recognize_call({"baggage": "x=1,,=,justitia.application="}, fields) is None


@pytest.mark.parametrize(
    ("headers", "application_id", "parent"),
    [
        # Since 0.147, a sub-agent of Codex sends the session of the root.
        ({"session-id": "r", "thread-id": "t", "x-codex-parent-thread-id": "r"}, "r", None),
        # Earlier versions of Codex send the sub-agent's own session.
        ({"session-id": "t", "thread-id": "t", "x-codex-parent-thread-id": "r"}, "t", "r"),
        ({"thread-id": "t", "x-codex-parent-thread-id": "r"}, "t", "r"),
        ({"thread-id": "r"}, "r", None),
    ],
)
def test_codex_call_names_its_root_or_parent_session(
    headers: dict[str, str], application_id: str, parent: str | None
) -> None:
    found = recognize_call(headers)

    assert found is not None
    assert f"codex/{application_id}" == found.application_id
    assert (None if parent is None else f"codex/{parent}") == found.parent_application_id


@pytest.mark.parametrize(
    ("headers", "final"),
    [
        ({"x-justitia-application": "a", "x-justitia-final": "true"}, True),
        ({"x-run": "a", "x-justitia-final": "TRUE"}, True),
        ({"x-dynamo-session-id": "s", "x-dynamo-session-final": "true"}, True),
        ({"x-dynamo-session-id": "s", "x-dynamo-session-final": "false"}, False),
        ({"x-justitia-application": "a", "x-justitia-final": "False"}, False),
    ],
)
def test_final_marker_closes_the_application(headers: dict[str, str], final: bool) -> None:
    """The service's own marker works with every rule, an agent program's only with its sessions."""
    found = recognize_call(headers)

    assert found is not None
    assert final == found.is_final


@pytest.mark.parametrize("value", ["1", "yes", "true, false"])
def test_unreadable_final_marker_is_refused(value: str) -> None:
    """Without an error, the application would stay open until it has been idle for long."""
    with pytest.raises(RequestError, match=r"x-justitia-final is .*: true or false is allowed"):
        recognize_call({"x-justitia-application": "a", "x-justitia-final": value})


@given(
    st.sampled_from([one for one in HARNESSES if one.run or one.session]),
    st.text(min_size=1, max_size=200),
)
def test_any_session_id_of_a_harness_is_accepted(harness: Harness, value: str) -> None:
    """Users cannot change the id, so an error would lock them out."""
    header = (*harness.run, *harness.session)[0]
    found = recognize_call({header: value})

    assert found is not None
    spec = ApplicationSpec("c", "", "t", application_id=found.application_id)
    assert found.application_id == spec.application_id
