"""What the HTTP surface asks of a scheduler directly."""

from collections.abc import Awaitable, Callable
from typing import Any

from ray.exceptions import RayActorError, RayTaskError

from justitia_ray.errors import AdmissionError
from justitia_ray.units import ApplicationId


class SchedulerCalls:
    """Four questions, answered or refused with an `AdmissionError`."""

    def __init__(
        self,
        application: Callable[[ApplicationId], Awaitable[dict[str, Any] | None]],
        close: Callable[[ApplicationId], Awaitable[bool]],
        cancel: Callable[[ApplicationId], Awaitable[bool]],
        status: Callable[[int], Awaitable[dict[str, Any]]],
    ) -> None:
        self.application = application
        self.close = close
        self.cancel = cancel
        self.status = status


def scheduler_calls(scheduler: Any, note_closed: Callable[[ApplicationId], None]) -> SchedulerCalls:
    """Return the calls to a scheduler actor.

    Args:
        scheduler: Its handle.
        note_closed: Told of each application that was closed by such a call.
    """

    async def ask(method: str, *arguments: str | int) -> Any:
        try:
            return await getattr(scheduler, method).remote(*arguments)
        except RayActorError:
            raise AdmissionError("the scheduler is being started again") from None
        except RayTaskError as error:
            raise AdmissionError(f"the scheduler cannot answer now: {error.cause}") from None

    async def application(application_id: ApplicationId) -> dict[str, Any] | None:
        found: dict[str, Any] | None = await ask("application", application_id)
        return found

    async def close(application_id: ApplicationId) -> bool:
        is_known = bool(await ask("close_application", application_id))
        note_closed(application_id)
        return is_known

    async def cancel(application_id: ApplicationId) -> bool:
        return bool(await ask("cancel_application", application_id))

    async def status(applications: int) -> dict[str, Any]:
        found: dict[str, Any] = await ask("status", applications)
        return found

    return SchedulerCalls(application, close, cancel, status)
