"""Fan-out of the console's frames to viewers, and lines about parts that fail."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from justitia_ray.errors import AdmissionError, TooManyViewers
from justitia_ray.serve.ingress import console_feed
from justitia_ray.serve.ingress.console_feed import (
    MOST_LINES,
    MOST_VIEWERS,
    MOST_VIEWERS_OF_ONE,
    MOST_VIEWERS_OF_TENANTS,
    ConsoleHub,
    ModelFeed,
    Viewer,
)


class StandInScheduler:
    """Fake scheduler whose console data are numbered; the test advances the number."""

    def __init__(self) -> None:
        self.epoch, self.number = 1, 1
        self.asked: list[tuple[str | None, int | None]] = []
        """(tenant, last known frame number) of each call."""
        self.failure: Exception | None = None

    async def console_frame(
        self, tenant: str | None, epoch: int | None, number: int | None
    ) -> tuple[int, int, bytes] | None:
        self.asked.append((tenant, number))
        if self.failure is not None:
            raise self.failure
        since = number if epoch == self.epoch else None
        if since == self.number:
            return None
        frame = {"kind": "frame", "tenant": tenant, "number": self.number, "since": since}
        return self.epoch, self.number, json.dumps(frame).encode()

    async def overview(self) -> dict[str, Any]:
        return {"learns": True}


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> StandInScheduler:
    """Return a fake scheduler whose console data are fetched a hundred times a second."""
    monkeypatch.setattr(console_feed, "INTERVAL_S", 0.01)
    return StandInScheduler()


@pytest.fixture
async def hub(scheduler: StandInScheduler) -> AsyncIterator[ConsoleHub]:
    hub = ConsoleHub({"m": ModelFeed("m", scheduler, scheduler.overview)})
    yield hub
    for viewer in [*hub._viewers]:
        hub.leave(viewer)


async def line(viewer: Viewer, kind: str = "frame") -> dict[str, Any]:
    async with asyncio.timeout(5):
        while True:
            told: dict[str, Any] = json.loads(await viewer.next_line())
            if told["kind"] == kind:
                return told


async def test_later_console_messages_contain_only_changes(
    hub: ConsoleHub, scheduler: StandInScheduler
) -> None:
    viewer = hub.join(None, ["m"])
    assert (await line(viewer))["since"] is None

    scheduler.number = 2
    told = await line(viewer)
    assert (told["number"], told["since"]) == (2, 1)


async def test_console_viewers_of_one_tenant_share_scheduler_calls(
    hub: ConsoleHub, scheduler: StandInScheduler
) -> None:
    viewers = [hub.join("acme", ["m"]) for _ in range(3)]
    for viewer in viewers:
        await line(viewer)
    scheduler.asked.clear()
    scheduler.number = 2
    frames = [await line(viewer) for viewer in viewers]

    assert all(frame == frames[0] for frame in frames)
    changes = [number for _, number in scheduler.asked if number == 1]
    assert len(changes) <= 1 + scheduler.asked.index(("acme", 1))


async def test_tenant_and_operator_get_different_console_frames(
    hub: ConsoleHub, scheduler: StandInScheduler
) -> None:
    viewers = {tenant: hub.join(tenant, ["m"]) for tenant in (None, "acme", "globex")}
    for tenant, viewer in viewers.items():
        assert (await line(viewer))["tenant"] == tenant


async def test_scheduler_is_not_called_without_a_console_viewer(
    hub: ConsoleHub, scheduler: StandInScheduler
) -> None:
    viewer = hub.join(None, ["m"])
    await line(viewer)
    hub.leave(viewer)
    await asyncio.sleep(0)
    count = len(scheduler.asked)
    for _ in range(20):
        await asyncio.sleep(0.001)

    assert len(scheduler.asked) == count


async def test_console_shows_a_dead_scheduler_and_then_a_complete_frame(
    hub: ConsoleHub, scheduler: StandInScheduler
) -> None:
    viewer = hub.join(None, ["m"])
    await line(viewer)
    scheduler.failure = AdmissionError("the scheduler is being started again")
    told = await line(viewer, "trouble")
    assert (told["model"], told["reason"]) == ("m", "the scheduler is being started again")

    scheduler.failure, scheduler.epoch, scheduler.number = None, 2, 1
    assert (await line(viewer))["since"] is None


async def test_console_shows_a_scheduler_that_does_not_answer(
    hub: ConsoleHub, scheduler: StandInScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_feed, "ANSWER_S", 0.01)

    async def never_answer(*arguments: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(scheduler, "console_frame", never_answer)
    told = await line(hub.join(None, ["m"]), "trouble")

    assert told["reason"] == "the scheduler has not answered within 0.01 s"
    assert told["since_s"] > 0


async def test_slow_console_viewer_misses_frames_and_then_gets_a_complete_frame(
    hub: ConsoleHub, scheduler: StandInScheduler
) -> None:
    viewer = hub.join("acme", ["m"])
    await line(viewer)
    for _ in range(MOST_LINES + 1):
        viewer.offer(b'{"kind": "frame", "since": 1}')
    assert viewer.behind == {"m"}

    assert (await line(viewer))["since"] is None
    assert not viewer.behind


async def test_only_operators_see_the_predictor_on_the_console(hub: ConsoleHub) -> None:
    operator, tenant = hub.join(None, ["m"]), hub.join("acme", ["m"])
    assert (await line(operator, "predictor"))["overview"] == {"learns": True}

    late = hub.join(None, ["m"])
    assert (await line(late, "predictor"))["overview"] == {"learns": True}
    await line(tenant)
    assert all(b'"predictor"' not in told for told in tenant._lines)


async def test_failing_predictor_is_shown_on_the_console(
    hub: ConsoleHub, scheduler: StandInScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> dict[str, Any]:
        raise AdmissionError("the predictor gives no answer")

    monkeypatch.setattr(hub._feeds["m"], "_overview", fail)
    told = await line(hub.join(None, ["m"]), "predictor")

    assert (told["overview"], told["error"]) == (None, "the predictor gives no answer")


async def test_number_of_console_viewers_per_tenant_is_bounded(hub: ConsoleHub) -> None:
    """Tenants cannot take the places of operators or of other tenants."""
    for _ in range(MOST_VIEWERS_OF_ONE):
        hub.join("acme", ["m"])
    with pytest.raises(TooManyViewers, match="viewers of this tenant") as refused:
        hub.join("acme", ["m"])
    assert refused.value.retry_after_s is not None

    for number in range(MOST_VIEWERS_OF_TENANTS - MOST_VIEWERS_OF_ONE):
        hub.join(f"t{number}", ["m"])
    with pytest.raises(TooManyViewers, match="viewers of tenants"):
        hub.join("another", ["m"])

    operators = [hub.join(None, ["m"]) for _ in range(MOST_VIEWERS - MOST_VIEWERS_OF_TENANTS)]
    with pytest.raises(TooManyViewers, match="viewers of this process"):
        hub.join(None, ["m"])
    hub.leave(operators[0])
    hub.join(None, ["m"])


async def test_unreachable_scheduler_does_not_delay_another_models_console_frames(
    scheduler: StandInScheduler,
) -> None:
    """If one scheduler is unreachable, the other model's data must still arrive."""
    other = StandInScheduler()
    other.failure = AdmissionError("it is away")
    feeds = {
        "m": ModelFeed("m", scheduler, scheduler.overview),
        "n": ModelFeed("n", other, other.overview),
    }
    hub = ConsoleHub(feeds)
    viewer = hub.join(None, ["m", "n"])

    assert {(await line(viewer))["kind"], (await line(viewer, "trouble"))["model"]} == {
        "frame",
        "n",
    }
    hub.leave(viewer)
