"""What was found, as text for a terminal and as JSON."""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from justitia_ray.doctor.finding import Finding, Severity
from justitia_ray.doctor.rules import PAIR_CHECKS, REDIS_CHECKS, SERVICE_CHECKS, is_wrong
from justitia_ray.doctor.visit import Visit

_SHOWN = 3
"""Findings of one rule; the JSON has all."""
_WIDTH = 100
_INDENT = 8

NO_REDIS = "Redis was not looked at: give --config FILE, the Serve configuration file"


def readable(visit: Visit, findings: Sequence[Finding]) -> str:
    """Return the findings as lines, and what it comes to as the last of them."""
    lines: list[str] = []
    for _, group in groupby(findings, lambda finding: finding.rule):
        of_rule = list(group)
        for finding in of_rule[:_SHOWN]:
            lines += [_entry(finding.severity, finding.what), _entry("", f"do: {finding.do}")]
        if len(of_rule) > _SHOWN:
            lines.append(_entry("", f"and {len(of_rule) - _SHOWN:,} more like it; --json has all"))
        lines.append("")
    if not visit.saw_redis:
        lines.append(NO_REDIS)
    lines.append(_summary(visit, findings))
    return "\n".join(lines)


def as_dict(visit: Visit, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings with everything that they were found in."""
    return {
        "wrong": is_wrong(findings),
        "checks": checks(visit),
        "redis_looked_at": visit.saw_redis,
        "findings": [asdict(finding) for finding in findings],
        "examinations": list(visit.answers),
    }


def checks(visit: Visit) -> int:
    """Return how many checks were made."""
    redis = len(REDIS_CHECKS) + len(PAIR_CHECKS) if visit.saw_redis else 0
    return len(SERVICE_CHECKS) + redis


def _summary(visit: Visit, findings: Sequence[Finding]) -> str:
    counts = {
        severity: sum(finding.severity is severity for finding in findings) for severity in Severity
    }
    words = [f"{count} {severity}" for severity, count in counts.items() if count]
    if not is_wrong(findings):
        words = ["nothing wrong", *words]
    seen = visit.second.seen
    return f"{seen.name}/{seen.model}: {checks(visit)} checks, {', '.join(words)}"


def _entry(head: str, text: str) -> str:
    # What is in Redis may be anybody's, and a terminal obeys what it is told.
    plain = "".join(character if character.isprintable() else "?" for character in text)
    return textwrap.fill(
        plain,
        _WIDTH,
        initial_indent=head.ljust(_INDENT),
        subsequent_indent=" " * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
