"""`/v1/usage`: rows visible to a caller, and events with stable ids."""

from datetime import date

import pytest

from justitia_ray.access.identity import Identity, Scope
from justitia_ray.errors import Forbidden, RequestError
from justitia_ray.serve.ingress.http_usage import (
    _visible_tenant,
    cloud_events,
    days_between,
    usage_rows,
)
from justitia_ray.serve.ingress.request_context import RequestContext

_TODAY = date(2026, 11, 25)
_DAY = 20_782
"""Day of the test, counted in days from 1970-01-01."""
_TOLD = {
    "days": {
        _DAY - 1: {"a": {"tokens": 1}, "a/x": {"tokens": 2}, "ab": {"tokens": 3}},
        _DAY: {"a": {"tokens": 4}},
    },
    "open_from": _DAY,
}


def test_usage_report_includes_both_days_and_defaults_to_today() -> None:
    assert [_DAY] == days_between(None, None, _TODAY)
    assert [_DAY - 1, _DAY] == days_between("2026-11-24", "2026-11-25", _TODAY)


@pytest.mark.parametrize(
    ("since", "until", "param"),
    [
        ("yesterday", None, "from"),
        (None, "2026-13-01", "to"),
        ("2026-W48-2", None, "from"),
        ("2026-11-26", "2026-11-25", "from"),
        ("2020-01-01", None, "from"),
        ("20261101", None, "from"),
    ],
)
def test_error_names_the_parameter_of_an_invalid_day(
    since: str | None, until: str | None, param: str
) -> None:
    with pytest.raises(RequestError) as error:
        days_between(since, until, _TODAY)
    assert param == error.value.param


def test_usage_rows_cover_a_tenant_and_its_descendants() -> None:
    """`ab` is not below `a`; an operator that names no tenant gets all rows."""
    rows = list(usage_rows("m", _TOLD, "a"))

    assert [("2026-11-24", "a", True), ("2026-11-24", "a/x", True), ("2026-11-25", "a", False)] == [
        (row["day"], row["tenant"], row["is_final"]) for row in rows
    ]
    assert 4 == len(list(usage_rows("m", _TOLD, None)))


def test_billing_events_cover_finished_days_only() -> None:
    """Billing meters ignore an event whose id they know, so a total must not grow later."""
    once, again = (list(cloud_events("app", usage_rows("m", _TOLD, None))) for _ in range(2))

    assert once == again
    assert ["2026-11-24/m/a", "2026-11-24/m/a/x", "2026-11-24/m/ab"] == [one["id"] for one in once]
    assert ("1.0", "/justitia/app", "a", "2026-11-25T00:00:00Z") == tuple(
        once[0][name] for name in ("specversion", "source", "subject", "time")
    )
    assert {
        "day": "2026-11-24",
        "tenant": "a",
        "model": "m",
        "tokens": 1,
        "cached_prompt_tokens": 0,
        "prefill_token_time": 0,
        "computed_prompt_tokens": 0,
    } == once[0]["data"]


def test_usage_row_reports_computed_prompt_tokens() -> None:
    """Totals stored by an earlier version have no count of cached tokens."""
    totals = {"t": {"prompt_tokens": 10, "cached_prompt_tokens": 8}, "u": {"prompt_tokens": 9}}
    rows = usage_rows("m", {"days": {_DAY: totals}, "open_from": _DAY}, None)

    assert [(8, 2), (0, 9)] == [
        (row["cached_prompt_tokens"], row["computed_prompt_tokens"]) for row in rows
    ]


def test_billing_event_divides_prompt_tokens_into_cached_and_computed() -> None:
    totals = {"t": {"prompt_tokens": 10, "cached_prompt_tokens": 8}}
    rows = usage_rows("m", {"days": {_DAY - 1: totals}, "open_from": _DAY}, None)
    (event,) = cloud_events("app", rows)

    assert (10, 8, 2) == tuple(
        event["data"][name]
        for name in ("prompt_tokens", "cached_prompt_tokens", "computed_prompt_tokens")
    )


def test_caller_sees_its_own_tenant_and_operators_see_all() -> None:
    own = RequestContext(Identity("a", frozenset({Scope.OWN}), "key"))
    operator = RequestContext(Identity("a", frozenset({Scope.OPERATE}), "key"))

    assert ["a", "a/x"] == [_visible_tenant(own, None), _visible_tenant(own, "a/x")]
    assert [None, "b"] == [_visible_tenant(operator, None), _visible_tenant(operator, "b")]
    with pytest.raises(Forbidden):
        _visible_tenant(own, "b")
