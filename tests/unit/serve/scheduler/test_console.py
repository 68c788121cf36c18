"""The scheduler's side of the console: frames while there are viewers, and nothing otherwise."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from justitia_ray.core.events import ApplicationArrived, InferenceSubmitted
from justitia_ray.errors import AdmissionError
from justitia_ray.protocol.console import Frame, read_line
from justitia_ray.protocol.console_answers import Timeline
from justitia_ray.protocol.status import NodeShare, ReplicaView, SchedulerStatus, read_answer
from justitia_ray.serve.scheduler import console as scheduler_console
from justitia_ray.serve.scheduler.console import LINGER_S, SchedulerConsole, shares_of, strip_of
from justitia_ray.serve.scheduler.service import SchedulerService
from tests.unit.serve.scheduler.services import Services


@pytest.fixture
async def services() -> AsyncIterator[Services]:
    services = Services()
    yield services
    await services.close()


@pytest.fixture
async def service(services: Services) -> SchedulerService:
    """Return a leading service with a replica and one open application in each of two tenants."""
    service = await services.start_with_replica()
    for tenant in ("acme", "globex"):
        await service.open_application(
            ApplicationArrived(f"{tenant}|a", "class", tenant, 1.0, 100.0, "i0")
        )
    return service


def frame_of(told: tuple[int, int, bytes] | None) -> Frame:
    assert told is not None
    frame = read_line(msgspec.json.decode(told[2]))
    assert isinstance(frame, Frame)
    assert (frame.epoch, frame.number) == told[:2]
    return frame


async def test_scheduler_records_no_console_data_before_the_first_request(
    service: SchedulerService,
) -> None:
    driver = service.term.driver
    assert driver.observer is None

    frame = frame_of(await service.console_frame(None, None, None))

    assert service.console.is_watched
    assert frame.is_whole
    assert frame.own.applications == 2
    assert (frame.strip.state, frame.strip.replicas_up) == ("ready", 1)


async def test_recording_for_the_console_ends_after_the_last_request(
    service: SchedulerService,
) -> None:
    await service.console_frame(None, None, None)
    service.console._asked_at -= LINGER_S - 1.0
    service.console._stop_if_idle()
    assert service.console.is_watched

    service.console._asked_at -= 1.0
    service.console._stop_if_idle()
    assert service.term.driver.observer is None


async def test_console_readers_share_data_until_the_next_is_due(
    services: Services, service: SchedulerService
) -> None:
    first = await service.console_frame(None, None, None)
    again = await service.console_frame(None, None, None)
    assert first == again
    assert first is not None
    assert await service.console_frame(None, *first[:2]) is None

    services.hands.at += 1.0
    later = frame_of(await service.console_frame(None, *first[:2]))
    assert (later.number, later.is_whole) == (first[1] + 1, False)


async def test_console_viewer_of_another_epoch_gets_all_bars(
    services: Services, service: SchedulerService
) -> None:
    first = await service.console_frame(None, None, None)
    assert first is not None
    services.hands.at += 1.0

    assert frame_of(await service.console_frame(None, first[0] + 1, first[1])).is_whole


async def test_slow_computation_of_console_data_postpones_the_next_message(
    services: Services, service: SchedulerService
) -> None:
    """Console data that takes 0.1 s to compute may be computed every two seconds."""
    ticks = iter([0.0, 0.1, 0.1, 0.1, 9.0, 9.0, 9.0, 9.0])
    console = SchedulerConsole(service.term, service.inspector, lambda: next(ticks))
    first = console.frame(None, None, None)
    assert first is not None
    for _ in range(2):
        services.hands.at += 0.9
        service.term.clock.beat()
        assert console.frame(None, *first[:2]) is None

    services.hands.at += 0.3
    assert console.frame(None, *first[:2]) is not None


async def test_number_of_timeline_bars_in_a_console_message_is_bounded(
    service: SchedulerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_console, "MOST_FRAMES", 2)
    for tenant in ("acme", "globex"):
        await service.console_frame(tenant, None, None)

    with pytest.raises(AdmissionError, match="2 viewers watch already"):
        await service.console_frame("initech", None, None)


async def test_console_records_the_calls_of_an_application(
    services: Services, service: SchedulerService
) -> None:
    assert await service.console_application("acme|none") is None
    call = InferenceSubmitted("r1", "acme|a", "0", "i0", 10, 5, 5)
    await service.submit_many("i0", service.term.epoch, 0, (call,))
    told = await service.console_application("acme|a")
    assert told is not None
    timeline = read_answer(Timeline, msgspec.json.decode(told), "timeline")

    assert [(one.inference_id, one.replica_id) for one in timeline.calls] == [("0", "r")]
    assert timeline.trace is None


async def test_traced_application_has_a_link_to_its_trace(services: Services) -> None:
    service = services.new_service()
    service.term.config = service.term.config.model_copy(
        update={
            "tracing": service.term.config.tracing.model_copy(
                update={
                    "endpoint": "http://c:4318/v1/traces",
                    "sample_ratio": 1.0,
                    "trace_url": "https://tempo.example/trace/{trace_id}",
                }
            )
        }
    )
    console = SchedulerConsole(service.term, service.inspector)
    trace = console._application_trace("acme|a")

    assert trace is not None
    assert trace.url == f"https://tempo.example/trace/{trace.trace_id}"
    assert len(trace.trace_id) == 32


@pytest.mark.parametrize(
    ("status", "state", "why"),
    [
        (SchedulerStatus(degraded="redis is away"), "degraded", "redis is away"),
        (SchedulerStatus(recovering=True), "recovering", "began again"),
        (SchedulerStatus(), "empty", "no replica is up"),
        (SchedulerStatus(replicas={"r": ReplicaView(state="stalled")}), "stalled", "no steps"),
        (SchedulerStatus(replicas={"r": ReplicaView(state="serving")}), "ready", ""),
    ],
)
def test_console_header_says_the_schedulers_state_and_its_reason(
    status: SchedulerStatus, state: str, why: str
) -> None:
    strip = strip_of(status)

    assert strip.state == state
    assert why in (strip.why or "")


def test_console_shows_all_tenants_with_quotas() -> None:
    """A tenant without a live application may have used up its quota."""
    quota = {"unit": "tokens", "per": "hour", "limit": 10.0, "used": 8.0, "claimed": 1.0}
    quota |= {"remaining": 1.0, "reset_s": 60.0, "on_exhausted": "reject", "exceeded": 0}
    share = NodeShare(
        node="b",
        weight=1.0,
        fair_share=0.5,
        guaranteed=0.0,
        used=0.4,
        borrowed=0.0,
        waiting=1,
        running=2,
    )
    rows = shares_of(SchedulerStatus(shares=(share,), quotas={"a": [quota], "b": [quota]}))

    assert [(row.node, row.used, row.quotas[0].remaining) for row in rows] == [
        ("a", 0.0, 1.0),
        ("b", 0.4, 1.0),
    ]
