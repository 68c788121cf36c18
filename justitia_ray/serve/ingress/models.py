"""The served models, found by the name in a request, and the calls to each model's parts."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayActorError, RayTaskError
from ray.serve.handle import DeploymentHandle

from justitia_ray.config import AppConfig
from justitia_ray.core.actions import Refusal
from justitia_ray.core.ended_by_owner import EndedByOwner
from justitia_ray.errors import AdmissionError, RequestError, UnknownModel, shown_short
from justitia_ray.protocol.request_mapping import best_alias
from justitia_ray.serve.ingress.gateway import Gateway
from justitia_ray.serve.ingress.inspection import InspectionCalls
from justitia_ray.serve.ingress.pending_inferences import PendingInferences
from justitia_ray.units import ApplicationId, ClientId, Epoch, Seconds

_ANSWER_S: Seconds = 30.0
"""Maximum seconds until a scheduler answers; one that waits for Redis does not answer."""


@dataclass(frozen=True, slots=True)
class SchedulerCalls:
    """Calls of the HTTP API to a model's scheduler."""

    scheduler: Any
    """Handle of the scheduler actor."""
    pending: PendingInferences
    """Pending inferences and applications of this ingress, which also record closed applications.
    """
    ended: EndedByOwner
    """Applications ended by callers at this ingress, for the next scheduler."""

    async def find_application(self, application_id: ApplicationId) -> dict[str, Any] | None:
        """Return the scheduler's state of an application; None if it is unknown.

        Raises:
            AdmissionError: If the scheduler does not answer, as in all these calls.
        """
        found: dict[str, Any] | None = await self._call_scheduler("application", application_id)
        return found

    async def applications(self, most: int, tenant: str | None) -> dict[str, Any]:
        """Return a tenant's or all tenants' first applications in order, and count further ones."""
        found: dict[str, Any] = await self._call_scheduler("applications", most, tenant)
        return found

    async def close_application(self, application_id: ApplicationId) -> bool:
        """Close an application to new inferences; return whether the scheduler knew it."""
        is_known = bool(await self._call_scheduler("close_application", application_id))
        self.pending.note_closed(application_id)
        self._note_ended(application_id, Refusal.APPLICATION_CLOSED, is_known=is_known)
        return is_known

    async def cancel_application(self, application_id: ApplicationId) -> bool:
        """Cancel an application with all its inferences; return whether the scheduler knew it."""
        is_known = bool(await self._call_scheduler("cancel_application", application_id))
        self._note_ended(application_id, Refusal.APPLICATION_CANCELLED, is_known=is_known)
        return is_known

    async def tell_ended(self) -> None:
        """Tell a new scheduler which applications callers at this ingress have recently ended."""
        recent = self.ended.recent(asyncio.get_running_loop().time())
        # An application that was opened again after its end is skipped.
        ended = [one for one in recent if one[0] not in self.pending.applications]
        if ended:
            with suppress(AdmissionError):  # The call is not repeated if the scheduler is lost.
                await self._call_scheduler("restore_ended", ended)

    def _note_ended(self, name: ApplicationId, reason: Refusal, *, is_known: bool) -> None:
        if is_known:
            self.ended.note(name, reason, asyncio.get_running_loop().time())

    async def status(self, applications: int) -> dict[str, Any]:
        """Return the scheduler's status with its first applications, at most `applications`."""
        found: dict[str, Any] = await self._call_scheduler("status", applications)
        return found

    async def console_frame(
        self, tenant: ClientId | None, epoch: Epoch | None, number: int | None
    ) -> tuple[Epoch, int, bytes] | None:
        """Return a tenant's present view for the console; None: the reader already has it.

        Args:
            tenant: The tenant; None: all.
            epoch: Epoch of the last frame that the reader has; None: it has none.
            number: Number of that frame.
        """
        found: tuple[Epoch, int, bytes] | None
        found = await self._call_scheduler("console_frame", tenant, epoch, number)
        return found

    async def console_application(self, application_id: ApplicationId) -> bytes | None:
        found: bytes | None = await self._call_scheduler("console_application", application_id)
        return found

    async def console_history(self, lasts_s: Seconds) -> bytes:
        """Return the recorded history of the queue as JSON, for a what-if estimate.

        Raises:
            AdmissionError: Also if no recorded application can be replayed yet.
        """
        found: bytes = await self._call_scheduler("console_history", lasts_s)
        return found

    async def usage(self, days: Sequence[int]) -> dict[str, Any]:
        """Return the model's usage of the given days; see `SchedulerService.usage`."""
        found: dict[str, Any] = await self._call_scheduler("usage", list(days))
        return found

    async def _call_scheduler(self, method: str, *arguments: Any) -> Any:
        call = getattr(self.scheduler, method, None)
        if call is None:
            raise AdmissionError(f"the scheduler runs an earlier version, without {method!r}")
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await call.remote(*arguments)
        except TimeoutError:
            raise AdmissionError(
                f"the scheduler has not answered within {_ANSWER_S:g} s, and may do the call later"
            ) from None
        except RayActorError:
            raise AdmissionError("the scheduler is being started again") from None
        except RayTaskError as error:
            raise AdmissionError(f"the scheduler cannot answer now: {error.cause}") from None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A served model, with the calls to its scheduler, replicas and predictor."""

    config: AppConfig
    gateway: Gateway
    scheduler: SchedulerCalls
    predictor: DeploymentHandle
    inspection: InspectionCalls

    @property
    def name(self) -> str:
        """Name of the model; callers may use the names of its adapters as well."""
        return self.config.model.name


class ServedModels:
    """The served models, at least one, in the order of the arguments, with distinct names."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._models = tuple(models)
        self._by_name = {name: model for model in models for name in model.config.model.names}
        self._by_alias = {alias: model for model in models for alias in model.config.model.aliases}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models)

    @property
    def only(self) -> ServedModel | None:
        return self._models[0] if len(self._models) == 1 else None

    @property
    def first(self) -> ServedModel:
        """First served model; settings that all models share are read from its configuration."""
        return self._models[0]

    def asked_for(self, fields: Mapping[str, Any]) -> ServedModel:
        """Return the served model that an inference's body names.

        With one served model the name is not read here: the reader of the body checks it.

        Raises:
            RequestError: If there are several models and the body names none.
            UnknownModel: If the body names a model that is not served.
        """
        return self.only or self.named(fields.get("model"))

    def named(self, name: Any) -> ServedModel:
        """Return the model that a request names; None means the only model.

        Raises:
            RequestError: If there are several models and none is named, or the name is not a
                string.
            UnknownModel: If the request names a model that is not served.
        """
        if name is None:
            if self.only is not None:
                return self.only
            raise RequestError(f"model is required: one of {self._names()} is allowed", "model")
        if not isinstance(name, str):
            raise RequestError(f"model must be a string, not {type(name).__name__}", "model")
        if name in self._by_name:
            return self._by_name[name]
        alias = best_alias(name, tuple(self._by_alias))
        if alias is None:
            are = "is" if len(self._by_name) == 1 else "are"
            raise UnknownModel(
                f"the model {shown_short(name)} does not exist; {self._names()} {are} served here",
                "model",
            )
        return self._by_alias[alias]

    def single(self, name: str | None) -> ServedModel | None:
        """Return the model that a query names, or the only model; None: the call is for all models.

        Raises:
            UnknownModel: If the query names a model that is not served.
        """
        return self.only if name is None else self.named(name)

    async def ask_each(self, ask: Callable[[ServedModel], Awaitable[Any]]) -> dict[str, Any]:
        """Return one answer of each model, by the models' names."""
        answers = await asyncio.gather(*map(ask, self._models))
        return {model.name: answer for model, answer in zip(self._models, answers, strict=True)}

    def chosen(self, name: str | None) -> tuple[ServedModel, ...]:
        """Return the model that a query names as a list, or all models.

        Raises:
            UnknownModel: If the query names a model that is not served.
        """
        return self._models if name is None else (self.named(name),)

    def _names(self) -> str:
        return ", ".join(repr(name) for name in self._by_name)
