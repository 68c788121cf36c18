"""A scheduler admits nothing before it has settings, stored ones or those of an ingress."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from justitia_ray.errors import AdmissionError
from justitia_ray.serve.scheduler import leadership
from justitia_ray.serve.scheduler.service import SchedulerService
from tests.unit.serve.scheduler.services import Services, arrival_of, pull_of, submission_of


@pytest.fixture
async def services() -> AsyncIterator[Services]:
    services = Services()
    yield services
    await services.close()


async def _start_admission(service: SchedulerService, method: str) -> asyncio.Task[Any]:
    """Start a call that would admit work, and return it once it waits or has ended."""
    calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        "open_application": lambda: service.open_application(arrival_of()),
        "submit_many": lambda: service.submit_many(
            "i", service.term.epoch, 0, (arrival_of(), submission_of())
        ),
    }
    call = asyncio.create_task(calls[method]())
    for _ in range(5):
        await asyncio.sleep(0)
    return call


_LETTING_IN = pytest.mark.parametrize("method", ["open_application", "submit_many"])


@_LETTING_IN
async def test_no_work_is_admitted_before_the_settings_arrive(
    services: Services, method: str
) -> None:
    """A scheduler without settings has no quotas and would admit everything."""
    service = services.new_service()
    await service.term.begin()
    call = await _start_admission(service, method)
    live = dict(service.term.driver.core.state.applications)
    await service.configure({"policy": "fcfs"})
    answer = await call

    assert {} == live
    assert service.term.epoch == answer.epoch
    assert ["a"] == list(service.term.driver.core.state.applications)


@_LETTING_IN
async def test_wait_for_settings_ends_with_an_error(
    services: Services, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ingresses that have the settings may be unreachable; the caller may retry."""
    monkeypatch.setattr(leadership, "_SETTINGS_WITHIN_S", 0.01)
    service = services.new_service()
    await service.term.begin()
    with pytest.raises(AdmissionError, match="no stored settings") as raised:
        await (await _start_admission(service, method))

    assert 0.01 == raised.value.retry_after_s
    assert {} == service.term.driver.core.state.applications


async def test_scheduler_sends_its_epoch_before_it_has_settings(services: Services) -> None:
    """An ingress learns from the epoch that it has to send the settings."""
    service = services.new_service()
    await service.term.begin()
    other_epoch = await service.submit_many("i", 0, 0, (arrival_of(),))
    empty = await service.submit_many("i", service.term.epoch, 0, ())

    assert (service.term.epoch, ()) == (other_epoch.epoch, other_epoch.messages)
    assert not empty.messages


async def test_scheduler_stores_no_settings_before_it_receives_them(services: Services) -> None:
    """The next scheduler would take stored defaults for the operator's settings."""
    first = services.new_service()
    await first.term.begin()
    await first.pull(pull_of(1))
    await first.term.end()
    second = services.new_service()
    await second.term.begin()
    held = await _start_admission(second, "open_application")
    is_held = not held.done()
    await second.configure({})
    await held
    await second.term.end()
    third = services.new_service()
    await third.term.begin()
    is_free = (await _start_admission(third, "open_application")).done()

    assert is_held
    assert is_free
