"""The doctor's report: findings that hold in both snapshots, as text and as JSON."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from justitia_ray.doctor.front_rules import FRONT_RULES
from justitia_ray.doctor.rollout_rules import ROLLOUT_RULES
from justitia_ray.doctor.rule import Finding, Severity, Snapshot
from justitia_ray.doctor.scaling_rules import SCALING_RULES
from justitia_ray.doctor.service_rules import SERVICE_RULES
from justitia_ray.doctor.store_rules import PAIR_RULES, REDIS_RULES, STORE_RULES

_SHOWN = 3
"""Maximum number of findings per rule in the text; the JSON has all of them."""
_WIDTH = 100
_INDENT = 8
_ORDER = {severity: rank for rank, severity in enumerate(Severity)}

_LOOK_RULES = (*SERVICE_RULES, *ROLLOUT_RULES, *SCALING_RULES, *FRONT_RULES, *STORE_RULES)
"""Rules that need only one snapshot of the service, and no Redis."""

NO_REDIS = "Redis was not looked at: give --config FILE, the Serve configuration file"


def find(first: Snapshot, second: Snapshot) -> list[Finding]:
    """Return the faults that both snapshots of the service show, the most severe first.

    If another scheduler became leader between the snapshots, rules that compare both are skipped.
    """
    before = {(finding.rule, finding.subject) for finding in _findings_of_look(first)}
    found = [
        finding
        for finding in _findings_of_look(second)
        if (finding.rule, finding.subject) in before
    ]
    if _leader_epoch(first) == _leader_epoch(second):
        for rule in PAIR_RULES:
            found += rule.findings(first, second)
    return sorted(found, key=lambda finding: _ORDER[finding.severity])


def is_wrong(findings: Sequence[Finding]) -> bool:
    """Return whether a finding needs an operator's action."""
    return any(finding.severity is not Severity.NOTE for finding in findings)


def count_checks(look: Snapshot) -> int:
    """Return the number of rules that the doctor has checked."""
    redis = len(REDIS_RULES) + len(PAIR_RULES) if look.contacted_redis else 0
    return len(_LOOK_RULES) + redis


def report_text(look: Snapshot, findings: Sequence[Finding]) -> str:
    """Return the findings as lines; the last line is a summary.

    Args:
        look: The second snapshot.
        findings: Findings that are in both snapshots.
    """
    lines: list[str] = []
    for _, group in groupby(findings, lambda finding: finding.rule):
        of_rule = list(group)
        for finding in of_rule[:_SHOWN]:
            lines += [
                _wrap_entry(finding.severity, finding.what),
                _wrap_entry("", f"do: {finding.do}"),
            ]
        if len(of_rule) > _SHOWN:
            lines.append(
                _wrap_entry("", f"and {len(of_rule) - _SHOWN:,} more like it; --json has all")
            )
        lines.append("")
    if not look.contacted_redis:
        lines.append(NO_REDIS)
    lines.append(_summary_line(look, findings))
    return "\n".join(lines)


def report_dict(first: Snapshot, second: Snapshot, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings as JSON, with the service's reports on which they are based."""
    return {
        "wrong": is_wrong(findings),
        "checks": count_checks(second),
        "redis_looked_at": second.contacted_redis,
        "findings": [asdict(finding) for finding in findings],
        "examinations": [first.answer, second.answer],
    }


def _findings_of_look(look: Snapshot) -> Iterator[Finding]:
    for rule in (*_LOOK_RULES, *REDIS_RULES):
        yield from rule.findings(look)


def _leader_epoch(look: Snapshot) -> int | None:
    return None if look.leader is None else look.leader.epoch


def _summary_line(look: Snapshot, findings: Sequence[Finding]) -> str:
    counts = Counter(finding.severity for finding in findings)
    words = [f"{counts[severity]} {severity}" for severity in Severity if counts[severity]]
    if not is_wrong(findings):
        words = ["nothing wrong", *words]
    return f"{look.seen.name}/{look.seen.model}: {count_checks(look)} checks, {', '.join(words)}"


def _wrap_entry(head: str, text: str) -> str:
    # Redis may contain control characters, which are replaced in the report.
    plain = "".join(character if character.isprintable() else "?" for character in text)
    return textwrap.fill(
        plain,
        _WIDTH,
        initial_indent=head.ljust(_INDENT),
        subsequent_indent=" " * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
