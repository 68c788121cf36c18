"""Cost of prefill that replicas measure: frozen by the scheduler, stored, and shown."""

from collections.abc import AsyncIterator

import pytest

from justitia_ray import __version__
from justitia_ray.cli.status import status_text
from justitia_ray.core.prefill_costs import MeasuredPrefill
from justitia_ray.cost import PrefillCost
from justitia_ray.protocol.status import PrefillCostView
from justitia_ray.serve.scheduler.service import SchedulerService
from tests.unit.serve.scheduler.services import Services, pull_of

_FIRST = MeasuredPrefill(PrefillCost(200.0, 0.25), __version__)
_OTHER = MeasuredPrefill(PrefillCost(900.0), __version__)
_OLD = MeasuredPrefill(PrefillCost(50.0), "0.0.1")


@pytest.fixture
async def services() -> AsyncIterator[Services]:
    services = Services()
    yield services
    await services.close()


async def start_with_cost(services: Services, cost: str = "with_prefill") -> SchedulerService:
    return await services.start_leader(cost=cost)


def prefill_cost_in_status(service: SchedulerService) -> PrefillCostView | None:
    return service.inspector.status().prefill_cost


async def test_first_prefill_measurement_applies_to_all_replicas(
    services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    service = await start_with_cost(services)
    assert prefill_cost_in_status(service) == PrefillCostView(source="measured")
    epoch = service.term.epoch
    await service.pull(pull_of(1, epoch, prefill=_FIRST))
    await service.pull(pull_of(2, epoch, prefill=_OTHER))

    shown = PrefillCostView(source="measured", per_token=200.0, per_pair=0.25, release=__version__)
    assert prefill_cost_in_status(service) == shown
    assert "prefill.measured_differently" not in caplog.text


async def test_new_replica_with_a_very_different_prefill_cost_is_logged(
    services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    service = await start_with_cost(services)
    await service.pull(pull_of(1, service.term.epoch, prefill=_FIRST))
    service.term.note_prefill("r2", _OTHER)
    service.term.note_prefill("r3", _FIRST)

    assert caplog.text.count("prefill.measured_differently") == 1


async def test_restarted_scheduler_uses_the_stored_prefill_cost(services: Services) -> None:
    first = await start_with_cost(services)
    await first.pull(pull_of(1, first.term.epoch, prefill=_FIRST))
    await first.term.checkpointer.save_once()
    second = await start_with_cost(services)
    assert second.term.driver.core.state.prefill_cost == _FIRST.cost
    await second.pull(pull_of(1, second.term.epoch, prefill=_OTHER))

    assert second.term.driver.core.state.prefill_cost == _FIRST.cost


async def test_prefill_measurement_of_an_older_release_is_ignored(
    services: Services,
) -> None:
    """A draining replica of the last release may be the first to pull from a new scheduler."""
    service = await start_with_cost(services)
    await service.pull(pull_of(1, service.term.epoch, prefill=_OLD))
    assert service.term.driver.core.state.prefill_cost is None
    await service.pull(pull_of(2, service.term.epoch, prefill=_FIRST))

    assert service.term.driver.core.state.prefill_cost == _FIRST.cost


async def test_cost_as_in_the_paper_ignores_prefill_measurements(services: Services) -> None:
    service = await start_with_cost(services, "kv_token_time")
    await service.pull(pull_of(1, service.term.epoch, prefill=_FIRST))

    assert prefill_cost_in_status(service) is None
    assert service.term.driver.core.state.measured_prefill is None


@pytest.mark.parametrize(
    ("cost", "line"),
    [
        ({"source": "measured"}, "prefill cost  not measured yet"),
        (
            {"source": "measured", "per_token": 200.0, "per_pair": 0.25, "release": "1.2"},
            "200 token·iterations a computed token, 0.25 a pair, measured under 1.2",
        ),
        (
            {"source": "configured", "per_token": 1.0},
            "1 token·iterations a computed token, configured",
        ),
    ],
)
def test_status_shows_the_prefill_cost_with_its_source(cost: dict[str, object], line: str) -> None:
    answer = {"policy": "justitia", "ready": True, "prefill_cost": cost}

    assert line in status_text({"models": {"m": answer}})
