"""The JSON of a status and of applications: clients read its names, so none may change."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
from msgspec import to_builtins

from justitia_ray.accounts.messages import NodeStanding
from justitia_ray.core.events import LeaseProgress
from justitia_ray.core.tenants import Unit
from justitia_ray.protocol.engine import KeptKv
from justitia_ray.protocol.status import FoundApplication, Listing, SchedulerStatus, read_answer
from justitia_ray.serve.scheduler.service import SchedulerService
from tests.unit.serve.scheduler.services import Services, arrival_of, pull_of, submission_of

_STATUS = (
    "ready degraded epoch saves settings policy virtual_time applications waiting kept_out"
    " held_back_s in_flight backlog_kv_tokens grants prompt_tokens cached_prompt_tokens"
    " prefill_cost prefill_token_time forgiven_token_time"
    " late_reports engine_failures suspects recovering ingresses replicas head working_set"
    " first_applications store kv decisions shares quotas size version pid"
)
_REPLICA = (
    "kv_tokens leases running sequences max_num_seqs draining state silent_s used_kv_tokens kept"
)
_KEPT = "held_contexts held_kv_tokens host_kv_tokens host_kv_capacity_tokens"
_HEAD = (
    "application_id application_class tenant client key virtual_finish_time prompt_tokens"
    " predicted_output_tokens waited_s waits_for"
)
_APPLICATION = (
    "application_id application_class recognized_by tenant weight state predicted_kv_token_time"
    " kv_token_time prefill_token_time virtual_finish_time age_s waiting running ended"
    " prompt_tokens cached_prompt_tokens gps_lag"
)
_OUTLOOK = (
    "reason what_would_help position position_is_least ahead_kv_token_time expected_start_s"
    " expected_finish_s guaranteed_by_s context_full_s missing_kv_tokens"
)
_STORE = "kind durability connected trouble saved_s_ago save_interval_s unsaved_applications"
_SHARE = "node weight fair_share guaranteed used borrowed waiting running"
_QUOTA = "unit per limit used claimed remaining reset_s on_exhausted exceeded"
_SIZE = (
    "wanted asked reason drain_s work inflow_kv_per_s replica_kv_per_s load_s floor replicas"
    " starting why autoscaled"
)


@pytest_asyncio.fixture
async def service() -> AsyncIterator[SchedulerService]:
    """Scheduler with a running, a waiting and an idle application, and a quota."""
    services = Services()
    service = await services.start_leader()
    await service.configure({"policy": "justitia", "policy_options": {"fairness": "tenant"}})
    items = (
        arrival_of("a"),
        arrival_of("b"),
        arrival_of("c"),
        submission_of("q1", "a"),
        submission_of("q2", "b", 80),
    )
    await service.submit_many("i", 1, 0, items)
    await service.pull(pull_of(1))
    running = LeaseProgress("1-1", 20, 1, running=True)
    kept = KeptKv(held_contexts=1, held_kv_tokens=20)
    await service.pull(pull_of(2, ack=1, free_kv_tokens=79, progress=(running,), kept=kept))
    quota = NodeStanding(Unit.TOKENS, "day", 50.0, 1.0, 0.0, 49.0, 9.0, 86_400.0, "reject")
    service.term.gate.exchange.known.note({"t": (quota,)}, service.term.clock.now())
    yield service
    await services.close()


def as_json(answer: Any) -> Any:
    return json.loads(json.dumps(to_builtins(answer)))


def key_names(answer: dict[str, Any]) -> str:
    return " ".join(answer)


async def test_fields_of_the_status_have_fixed_names_and_order(service: SchedulerService) -> None:
    status = as_json(service.inspector.status(3))

    assert key_names(status) == _STATUS
    assert key_names(status["replicas"]["r"]) == _REPLICA
    assert key_names(status["replicas"]["r"]["kept"]) == _KEPT
    assert key_names(status["head"]) == _HEAD
    assert [key_names(one) for one in status["first_applications"]] == [_APPLICATION] * 3
    assert key_names(status["first_applications"][0]["gps_lag"]) == (
        "kv_token_time seconds bound_kv_token_time bound_s"
    )
    assert key_names(status["store"]) == _STORE
    assert key_names(status["kv"]) == "used_token_s capacity_token_s preemptions"
    assert key_names(status["decisions"]) == "count total_s at_most_s"
    assert [key_names(one) for one in status["shares"]] == [_SHARE]
    assert [key_names(one) for one in status["quotas"]["t"]] == [_QUOTA]
    assert key_names(status["size"]) == _SIZE


async def test_fields_of_applications_have_fixed_names_and_order(service: SchedulerService) -> None:
    listing = await service.applications(3)
    found = await service.application("b")

    assert found is not None
    assert key_names(listing) == "applications own others"
    assert (
        key_names(listing["own"]) == key_names(listing["others"]) == "applications waiting running"
    )
    assert {key_names(one) for one in (*listing["applications"], found)} == {
        f"{_APPLICATION} outlook"
    }
    assert {key_names(one["outlook"]) for one in listing["applications"]} == {_OUTLOOK}
    assert key_names(found["outlook"]) == f"{_OUTLOOK} quota_comes_back_s"
    assert key_names(found["outlook"]["expected_start_s"]) == "p10 p50 p90"


async def test_status_reader_parses_all_fields_that_the_scheduler_reports(
    service: SchedulerService,
) -> None:
    """A field that only one side knows would be lost without an error."""
    answers: dict[type[Any], Any] = {
        SchedulerStatus: service.inspector.status(3),
        Listing: await service.applications(3),
        FoundApplication: await service.application("b"),
    }
    sent = {kind: as_json(answer) for kind, answer in answers.items()}
    read = {kind: as_json(read_answer(kind, answer, "")) for kind, answer in sent.items()}

    sent[FoundApplication]["models"] = {}
    assert sent == read
