"""Rate-limit headers: a tenant's limits in the forms that clients know.

OpenAI's `x-ratelimit-*` and Anthropic's `anthropic-ratelimit-*` show one limit of requests and one
of tokens: of each, the limit with the least left. `RateLimit-Policy` and `RateLimit` of the IETF
(draft 10 of httpapi-ratelimit-headers) list several limits, also of KV token-time and applications.
A tenant may have a hundred limits, and proxies refuse long response heads (HAProxy those of 16 kB,
nginx those of 4 kB), so the limits with the smallest share left are listed first, as far as they
fit. A tenant without limits gets no header.
"""

import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from justitia_ray.core.limits import LimitStanding
from justitia_ray.units import Seconds

_OPENAI_UNITS = {"requests": "requests", "inferences": "requests", "tokens": "tokens"}
"""Name of a quota's unit in OpenAI's and Anthropic's headers."""
POLICY_HEADER = "ratelimit-policy"
LIMIT_HEADER = "ratelimit"
MOST_BYTES = 2_000
"""Maximum total length of the rate-limit headers in bytes, with names, values and separators."""
_LARGEST = 999_999_999_999_999
"""Largest integer of a structured header field (RFC 8941)."""
_ITEM = re.compile(r'"((?:[^"\\]|\\.)*)"((?:;[a-z]+=\d+)*)')
_PARAMETER = re.compile(r";([a-z]+)=(\d+)")


def limit_headers(
    standings: Iterable[LimitStanding],
    now: datetime,
    *,
    is_anthropic: bool,
    binding: LimitStanding | None = None,
) -> dict[str, str]:
    """Return the rate-limit headers of an answer; of duplicate limits the first is used.

    Args:
        standings: Limits of the tenant and of the nodes above it.
        now: Time of day in UTC, for Anthropic's reset times.
        is_anthropic: Whether the path is one of Anthropic's API.
        binding: The limit that refused the call, if any; listed first.
    """
    named: dict[str, LimitStanding] = {} if binding is None else {_limit_name(binding): binding}
    for standing in standings:
        named.setdefault(_limit_name(standing), standing)
    if not named:
        return {}
    headers = {}
    for unit, standing in _tightest(named.values()).items():
        limit, remaining = str(_whole_number(standing.limit)), str(_remaining_count(standing))
        if is_anthropic:
            headers[f"anthropic-ratelimit-{unit}-limit"] = limit
            headers[f"anthropic-ratelimit-{unit}-remaining"] = remaining
            headers[f"anthropic-ratelimit-{unit}-reset"] = _reset_time(now, standing.reset_s)
        else:
            headers[f"x-ratelimit-limit-{unit}"] = limit
            headers[f"x-ratelimit-remaining-{unit}"] = remaining
            headers[f"x-ratelimit-reset-{unit}"] = duration(standing.reset_s)
    ordered = sorted(named.items(), key=lambda item: (item[1] is not binding, _share_left(item[1])))
    return _ietf_headers(ordered, MOST_BYTES - _header_bytes(headers)) | headers


def _ietf_headers(ordered: Iterable[tuple[str, LimitStanding]], most_bytes: int) -> dict[str, str]:
    """Return the two headers of the IETF draft, with as many limits as fit in `most_bytes`."""
    policies: list[str] = []
    lefts: list[str] = []
    length = _header_bytes({POLICY_HEADER: "", LIMIT_HEADER: ""})
    for name, standing in ordered:
        quoted = _quoted_string(name)
        window = "" if standing.period_s is None else f";w={_whole_number(standing.period_s)}"
        policy = f"{quoted};q={_whole_number(standing.limit)}{window}"
        reset_s = _whole_number(math.ceil(standing.reset_s))
        left = f"{quoted};r={_remaining_count(standing)};t={reset_s}"
        length += len(policy) + len(left) + 2 * len(", ")
        if length > most_bytes:
            break
        policies.append(policy)
        lefts.append(left)
    return {POLICY_HEADER: ", ".join(policies), LIMIT_HEADER: ", ".join(lefts)} if lefts else {}


def _header_bytes(headers: Mapping[str, str]) -> int:
    """Return the length of HTTP/1.1 headers in bytes: `name: value` and the line end."""
    return sum(len(name) + len(value) + 4 for name, value in headers.items())


def read_limits(headers: Mapping[str, str]) -> tuple[LimitStanding, ...]:
    """Parse the limits in an answer's headers; the limit with the smallest share left is first.

    Args:
        headers: Headers of the answer, with lower-case names.
    """
    quotas = _parse_items(headers.get(POLICY_HEADER, ""))
    found = []
    for name, left in _parse_items(headers.get(LIMIT_HEADER, "")).items():
        policy, (scope, _, unit) = quotas.get(name, {}), name.rpartition(":")
        if "q" in policy and "r" in left:
            period = policy.get("w")
            found.append(
                LimitStanding(
                    scope,
                    unit.partition("/")[0],
                    float(policy["q"]),
                    float(left["r"]),
                    float(left.get("t", 0)),
                    None if period is None else float(period),
                )
            )
    return tuple(sorted(found, key=_share_left))


def duration(seconds: Seconds) -> str:
    """Format seconds in OpenAI's form, rounded up: `0s`, `250ms`, `1s`, `6m0s`, `24h0m0s`."""
    if 0 < seconds < 1:
        return f"{math.ceil(1_000 * seconds)}ms"
    minutes, rest = divmod(_whole_number(math.ceil(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _tightest(standings: Iterable[LimitStanding]) -> dict[str, LimitStanding]:
    """Return the limit with the least left for each unit; of equals, the one that resets later."""
    tightest: dict[str, LimitStanding] = {}
    for standing in standings:
        unit = _OPENAI_UNITS.get(standing.unit)
        if unit is None:
            continue
        known = tightest.get(unit)
        if known is None or _tightness(standing) < _tightness(known):
            tightest[unit] = standing
    return tightest


def _tightness(standing: LimitStanding) -> tuple[float, float]:
    return standing.remaining, -standing.reset_s


def _share_left(standing: LimitStanding) -> float:
    return standing.remaining / standing.limit if standing.limit else 0.0


def _remaining_count(standing: LimitStanding) -> int:
    return _whole_number(math.floor(standing.remaining))


def _whole_number(value: float) -> int:
    """Return a value as an integer that fits in a structured header field."""
    return int(min(max(0.0, value), _LARGEST))


def _reset_time(now: datetime, reset_s: Seconds) -> str:
    """Return the time of a reset in RFC 3339 form, in whole seconds."""
    whole = now.replace(microsecond=0)
    at = whole + timedelta(seconds=math.ceil(reset_s + now.microsecond / 1e6))
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _limit_name(standing: LimitStanding) -> str:
    """Return the name of a limit: scope, unit, period in seconds, as in `acme/search:tokens/60`."""
    period = "" if standing.period_s is None else f"/{_whole_number(standing.period_s)}"
    return f"{standing.scope}:{standing.unit}{period}"


def _quoted_string(text: str) -> str:
    """Return a text as a string of a structured header field (RFC 8941)."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _parse_items(header: str) -> dict[str, dict[str, int]]:
    """Parse a structured header field: a list of strings with integer parameters."""
    return {
        re.sub(r"\\(.)", r"\1", name): {key: int(n) for key, n in _PARAMETER.findall(rest)}
        for name, rest in _ITEM.findall(header)
    }
