"""The crowd of a chaos run: answers beyond its quota and usage without an answer are found."""

import pytest

from justitia_ray.client.transport import HttpTransport
from tests.harness.chaos.crowd import CROWD, LIMIT, CrowdRecord, QuotaTenantLoad
from tests.harness.chaos.plan import FaultKind
from tests.harness.chaos.records import Ending
from tests.unit.client.fakes import FakeService
from tests.unit.harness.made_up import answered_call, injected_fault

SERVES = "500: Internal Server Error"
OURS = "500: the replica was lost"
_AT = [float(k) for k in range(LIMIT)]


def _usage_rows(applications: int, inferences: int) -> list[dict[str, int]]:
    return [{"applications": applications, "inferences": inferences}]


@pytest.mark.parametrize(
    ("answered_at", "usage", "flaws"),
    [
        (_AT, _usage_rows(LIMIT, LIMIT), 0),
        # Uncounted calls at 9, 10 and 11 s, when no process of the quota service was alive.
        (_AT, _usage_rows(LIMIT, LIMIT - 3), 0),
        (_AT, _usage_rows(LIMIT, LIMIT - 4), 1),
        (_AT, _usage_rows(LIMIT + 1, LIMIT), 1),
        ([*_AT, 30.0], _usage_rows(LIMIT + 1, LIMIT + 1), 1),
        ([], [], 0),
        (_AT[:3], _usage_rows(3, 3), 0),
        (_AT[:3], _usage_rows(4, 3), 1),  # one answer was counted twice
    ],
)
def test_chaos_run_compares_quota_and_usage_with_the_answers(
    answered_at: list[float], usage: list[dict[str, int]], flaws: int
) -> None:
    """An extra answer is an error, as is a missing answer that no death explains."""
    found = CrowdRecord(answered_at).flaws(usage, [], [10.0], 1.0)

    assert flaws == len(found)


@pytest.mark.parametrize(
    ("killed", "detail", "flaws"),
    [
        (FaultKind.INGRESS_KILLED, SERVES, []),
        (FaultKind.INGRESS_KILLED, OURS, [f"call crowd.1: {OURS}"]),
        (FaultKind.REPLICA_KILLED, SERVES, [f"call crowd.1: {SERVES}"]),
    ],
)
def test_failed_call_is_an_error_unless_its_ingress_died(
    killed: FaultKind, detail: str, flaws: list[str]
) -> None:
    """Serve answers calls of a dead ingress with an error; no other call may fail."""
    failed = answered_call("crowd.1", 1.0, 3.0, ending=Ending.BROKEN, detail=detail)

    assert flaws == CrowdRecord(failed=[failed]).flaws([], [injected_fault(killed, 2.0)], [], 1.0)


@pytest.mark.asyncio
async def test_calls_of_the_quota_tenant_have_unique_names() -> None:
    """Two calls with equal names would count as one inference that ran twice."""
    service = FakeService()
    transport = HttpTransport("http://service", transport=service.http_transport())
    crowd = QuotaTenantLoad(transport)
    await crowd.call_repeatedly(2, 0.0)
    await crowd.call_repeatedly(2, 0.0)

    names = [request.body["user"] for request in service.requests]
    assert [f"{CROWD}.{number}#1" for number in range(4)] == sorted(names)


def test_quota_may_count_a_call_without_an_answer() -> None:
    """If the ingress died or the answer was lost, it is unknown whether the call ran."""
    record = CrowdRecord(_AT[:3], unreached=1)

    assert [] == record.flaws(_usage_rows(4, 4), [], [], 1.0)
    assert 2 == len(record.flaws(_usage_rows(5, 5), [], [], 1.0))


def test_missing_count_of_an_answered_call_is_found() -> None:
    """The death of a scheduler alone must lose no usage count."""
    assert 1 == len(CrowdRecord(_AT).flaws(_usage_rows(LIMIT, LIMIT - 1), [], [], 1.0))
