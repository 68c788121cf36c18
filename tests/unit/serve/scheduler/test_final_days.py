"""A day whose usage was declared final does not change, even at a later scheduler."""

from justitia_ray.core.usage import DAY_S
from justitia_ray.serve.scheduler.clock import SteadyClock
from tests.unit.serve.scheduler.services import Services

_TODAY = 20


async def test_slow_wall_clock_does_not_change_finished_days_of_usage() -> None:
    """A day is final once a checkpoint of the next day is stored."""
    walls = iter([_TODAY * DAY_S + 5.0, _TODAY * DAY_S - 60.0])
    services = Services(clock=lambda: SteadyClock(lambda: 100.0, lambda: next(walls)))
    first = await services.start_leader()
    before = (await first.usage([]))["open_from"]
    await first.term.checkpointer.next_save()
    after = (await first.usage([]))["open_from"]
    await first.term.end()
    second = await services.start_leader()
    now, later = second.term.driver.now(), (await second.usage([]))["open_from"]
    await services.close()

    assert before < _TODAY
    assert (_TODAY, _TODAY) == (after, later)
    assert _TODAY * DAY_S + 5.0 == now
