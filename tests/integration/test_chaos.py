"""Short form of `scripts/chaos`: a seeded load under some kinds of fault loses no answer."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio

from justitia_ray.client.calls import JsonCalls
from justitia_ray.client.transport import HttpTransport
from tests.eventually import eventually
from tests.harness.chaos.cluster import ONE_ORDER
from tests.harness.chaos.counts import count_calls
from tests.harness.chaos.crowd import CROWD, LIMIT, QUOTAS, QuotaTenantLoad
from tests.harness.chaos.load import draw_load
from tests.harness.chaos.order import measure_order
from tests.harness.chaos.plan import FaultKind, FaultRound, draw_plan
from tests.harness.chaos.recovery import fault_windows
from tests.harness.chaos.rounds import FaultRounds, fake_answers
from tests.harness.chaos.target import ChaosTarget
from tests.harness.key_ring import GATEWAY, OPERATOR, KeyRing, gateway_keys
from tests.harness.service import Service, Serving

pytestmark = [
    pytest.mark.ray,
    pytest.mark.after_engines,
    pytest.mark.asyncio(loop_scope="session"),
]

_SEED = 1
_WANTED = {"Replica": 2, "Ingress": 1, "Predictor": 1}
_INFERENCES = 150
_KINDS = (
    FaultKind.SCHEDULER_KILLED,
    FaultKind.REPLICA_KILLED,
    FaultKind.ENGINE_KILLED,
    FaultKind.CALLERS_LEFT,
    FaultKind.REPLICA_CUT,
    FaultKind.INGRESS_CUT,
    FaultKind.SCHEDULER_CUT,
    FaultKind.ENGINE_STOPPED,
    FaultKind.REPLICA_BUSY,
    FaultKind.REPLICA_HALF_OPEN,
    FaultKind.PORT_BLOCKED,
    FaultKind.WRONG_SECRETS,
)
_BACK_WITHIN_S = 20.0
"""Longest recovery in seconds on a busy machine; the target on an idle machine is 5 s."""


@pytest.fixture(scope="module")
def keys(serving: Serving) -> KeyRing:
    """API keys, of which one may call for any tenant."""
    return gateway_keys(serving.directory)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def service(serving: Serving, keys: KeyRing) -> AsyncIterator[Service]:
    """Application with a journal of runs and with API keys, for the test to break."""
    async with serving.deployed_service(
        "chaotic",
        access={"keys_file": str(keys.file)},
        user_config=ONE_ORDER | QUOTAS,
        import_path="tests.harness.chaos.app:build",
        fake={"iteration_s": 0.01, "max_num_seqs": 3},
        scheduler={
            "replica_timeout_s": 4.0,
            "lease_timeout_s": 5.0,
            # Lease reports are kept for less time than the test runs.
            # timeout.
            "application_idle_s": 15.0,
        },
        replica={"stall_allowance_s": 2.0},
    ) as service:
        yield service


async def test_faults_under_load_lose_duplicate_and_reorder_no_inference(
    service: Service, keys: KeyRing
) -> None:
    """A short run of `scripts/chaos` that is part of the test suite."""
    target = ChaosTarget(service.name, service.config, _WANTED)
    plan = draw_plan(_SEED, _KINDS)
    load = draw_load(_SEED, 36, _INFERENCES, len(plan) + 1)
    http = HttpTransport(service.url, api_key=keys.secrets[GATEWAY])
    rounds = FaultRounds(target, http, load, plan, stopped_s=1.0)
    async with rounds.sampling():
        late = await rounds.run_rounds(over_within_s=_BACK_WITHIN_S)
    await http.aclose()
    await service.until_idle()
    records, runs = rounds.records, rounds.runs()
    counts = count_calls(load, records, runs, fake_answers(load, service.config))
    order = measure_order(runs, records.calls, fault_windows(records, runs), records.tags)

    assert [] == late
    assert [kind for fault_round in plan for kind in fault_round.kinds] == [
        h.kind for h in records.faults
    ]
    assert _INFERENCES == counts.inferences
    assert ((),) * 5 == (counts.lost, counts.doubled, counts.wrong, counts.cut, counts.broken)
    assert ((), ()) == (order.unexplained, order.tags_changed)
    assert order.pairs > 0
    assert 2 < len({run.pid for run in runs})  # Replicas that replaced dead ones also ran calls.


async def test_quota_and_usage_are_kept_while_quota_service_and_scheduler_die(
    service: Service, keys: KeyRing
) -> None:
    """Quotas must not be exceeded, and no tenant may be billed for usage it did not have."""
    target = ChaosTarget(service.name, service.config, _WANTED)
    http = HttpTransport(service.url, api_key=keys.secrets[GATEWAY])
    rounds = FaultRounds(target, http, (), (), stopped_s=1.0)
    records = rounds.records
    crowd = QuotaTenantLoad(http)
    playing = asyncio.create_task(crowd.call_repeatedly(120, 0.1))
    for number, kind in enumerate(
        (FaultKind.ACCOUNTS_KILLED, FaultKind.SCHEDULER_KILLED, FaultKind.ACCOUNTS_KILLED)
    ):
        enough = min(LIMIT, len(crowd.record.answered_at) + 4)
        await eventually(
            partial(_enough_are_answered, crowd, enough), "calls are answered", _BACK_WITHIN_S
        )
        fault_round = FaultRound(number, (kind,), 0.0, 0.5)
        records.faults += await rounds.injector.inject_faults(fault_round)
    await playing
    await http.aclose()
    await service.until_idle()
    operator = HttpTransport(service.url, api_key=keys.secrets[OPERATOR])
    usage = (await JsonCalls(operator).call("GET", f"/v1/usage?tenant={CROWD}"))["data"]
    await operator.aclose()

    # The scheduler dies alone, so no lost usage is excused.
    assert [] == crowd.record.flaws(usage, records.faults, deaths_at=(), saved_s=0.0)
    assert LIMIT == len(crowd.record.answered_at)
    assert 120 == LIMIT + crowd.record.refused + crowd.record.unreached


def _enough_are_answered(crowd: QuotaTenantLoad, count: int) -> bool:
    return len(crowd.record.answered_at) >= count
