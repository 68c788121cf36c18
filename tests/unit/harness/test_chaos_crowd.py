"""The crowd of a chaos run: answers beyond its quota and usage without an answer are found."""

import pytest

from justitia_ray.client.transport import HttpTransport
from tests.harness.chaos.crowd import CROWD, LIMIT, Crowd, CrowdRecord
from tests.harness.chaos.plan import FaultKind
from tests.harness.chaos.records import Ending
from tests.unit.client.fakes import FakeService
from tests.unit.harness.made_up import call, fault

SERVES = "500: Internal Server Error"
OURS = "500: the replica was lost"
_AT = [float(k) for k in range(LIMIT)]


def _usage(applications: int, inferences: int) -> list[dict[str, int]]:
    return [{"applications": applications, "inferences": inferences}]


@pytest.mark.parametrize(
    ("answered_at", "usage", "flaws"),
    [
        (_AT, _usage(LIMIT, LIMIT), 0),
        # those at 9, 10 and 11 s: no process was left to count them
        (_AT, _usage(LIMIT, LIMIT - 3), 0),
        (_AT, _usage(LIMIT, LIMIT - 4), 1),
        (_AT, _usage(LIMIT + 1, LIMIT), 1),
        ([*_AT, 30.0], _usage(LIMIT + 1, LIMIT + 1), 1),
        ([], [], 0),
        (_AT[:3], _usage(3, 3), 0),
        (_AT[:3], _usage(4, 3), 1),  # one answer was counted twice
    ],
)
def test_quota_and_usage_are_compared_with_answers(
    answered_at: list[float], usage: list[dict[str, int]], flaws: int
) -> None:
    """One answer too many is a flaw, and so is a missing one without a death that explains it."""
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
def test_error_is_a_flaw_unless_an_ingress_took_the_call_with_it(
    killed: FaultKind, detail: str, flaws: list[str]
) -> None:
    """Serve answers calls of an ingress that has died with an error; no other call may fail."""
    failed = call("crowd.1", 1.0, 3.0, ending=Ending.BROKEN, detail=detail)

    assert flaws == CrowdRecord(failed=[failed]).flaws([], [fault(killed, 2.0)], [], 1.0)


@pytest.mark.asyncio
async def test_no_two_calls_of_a_crowd_have_one_name() -> None:
    """The crowd plays in each phase; two runs of one name would count as a doubled inference."""
    service = FakeService()
    transport = HttpTransport("http://service", transport=service.http())
    crowd = Crowd(transport)
    await crowd.play(2, 0.0)
    await crowd.play(2, 0.0)

    names = [request.body["user"] for request in service.requests]
    assert [f"{CROWD}.{number}#1" for number in range(4)] == sorted(names)


def test_unanswered_call_may_be_counted() -> None:
    """The ingress died, or the answer was lost: it is unknown whether the call ran."""
    record = CrowdRecord(_AT[:3], unreached=1)

    assert [] == record.flaws(_usage(4, 4), [], [], 1.0)
    assert 2 == len(record.flaws(_usage(5, 5), [], [], 1.0))


def test_answered_call_that_is_missing_is_found() -> None:
    """The death of a scheduler alone must lose no count."""
    assert 1 == len(CrowdRecord(_AT).flaws(_usage(LIMIT, LIMIT - 1), [], [], 1.0))
