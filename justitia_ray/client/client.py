"""The asynchronous client."""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from justitia_ray.client.application import Application
from justitia_ray.client.calls import JsonCalls, Sleep
from justitia_ray.client.handle_transport import HandleTransport
from justitia_ray.client.transport import HttpTransport, Transport
from justitia_ray.errors import ResponseError, UnknownModel
from justitia_ray.units import ApplicationId


class JustitiaClient:
    """Opens applications on the service.

    ```
    async with (
        JustitiaClient.connect("http://localhost:8000") as client,
        client.application("MRS", input=document) as app,
    ):
        answer = await app.chat("Summarise …", max_tokens=200)
    ```

    One client serves any number of applications at once. It belongs to one event loop.

    Args:
        transport: The way to the service; the client closes it.
        model: The model to ask. By default the only one that the service has.
        tenant: On whose behalf applications run that name no tenant.
        max_retries: How often a call is repeated that the service cannot have begun (no connection,
            429, 503), at most.
        sleep: Waits that many seconds between such attempts; a test passes its own.

    Raises:
        ConfigError: If `max_retries` is negative.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        model: str | None = None,
        tenant: str | None = None,
        max_retries: int = 2,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._calls = JsonCalls(transport, max_retries=max_retries, sleep=sleep)
        self._model = self._named_model = model
        self._model_lock = asyncio.Lock()
        self._tenant = tenant

    @classmethod
    def connect(
        cls,
        base_url: str,
        *,
        model: str | None = None,
        tenant: str | None = None,
        max_retries: int = 2,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> Self:
        """Return a client that reaches the service over HTTP; see `HttpTransport`.

        Raises:
            ConfigError: If `base_url` is not an http(s) URL, or `max_retries` is negative.
        """
        http = HttpTransport(base_url, headers=headers, transport=transport)
        return cls(http, model=model, tenant=tenant, max_retries=max_retries)

    @classmethod
    def from_handle(
        cls,
        handle: Any,
        *,
        model: str | None = None,
        tenant: str | None = None,
        max_retries: int = 2,
    ) -> Self:
        """Return a client that reaches the service over a Serve handle of its Ingress deployment.

        Raises:
            ConfigError: If `max_retries` is negative.
        """
        return cls(HandleTransport(handle), model=model, tenant=tenant, max_retries=max_retries)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Give back every connection. Safe to call twice."""
        await self._calls.aclose()

    def application(
        self,
        application_class: str,
        *,
        input: str,
        tenant: str | None = None,
        weight: float | None = None,
        application_id: ApplicationId | None = None,
        model: str | None = None,
    ) -> Application:
        """Return an application, to be entered with `async with`.

        Args:
            application_class: What kind it is, e.g. `MRS`; its cost is predicted from the class and
                the input, so agents that work alike should share a class.
            input: The text that its user submitted.
            tenant: On whose behalf it runs; by default the client's tenant.
            weight: Its share of service relative to others, finite and positive; 1 by default.
            application_id: A name for it of the caller's own, by default one of the service's.
            model: The model that it begins with and that its calls ask unless they name another;
                by default the client's. Without either, where several models are served, every call
                has to name one.

        Raises:
            RequestError: If a name cannot travel in a header.
        """

        async def asked() -> str:
            return await self.default_model() if model is None else model

        return Application(
            self._calls,
            asked,
            application_class,
            input=input,
            tenant=self._tenant if tenant is None else tenant,
            weight=weight,
            application_id=application_id,
            opened_for=self._named_model if model is None else model,
        )

    async def models(self) -> tuple[str, ...]:
        """Return the names of the models that the service has.

        Raises:
            ResponseError: If the service answered with an error, or not with a list of models.
            ConnectionError: If it did not answer.
        """
        answer = await self._calls.call("GET", "/v1/models")
        try:
            return tuple(str(model["id"]) for model in answer["data"])
        except (KeyError, TypeError) as error:
            raise ResponseError(200, "the answer is not a list of models") from error

    async def default_model(self) -> str:
        """Return the model to ask: the client's own, or the only one served (asked for once).

        Raises:
            UnknownModel: If the service has none, or several to choose from.
            ResponseError: If the service answered with an error.
            ConnectionError: If it did not answer.
        """
        async with self._model_lock:
            if self._model is None:
                names = await self.models()
                if len(names) != 1:
                    raise UnknownModel(
                        "model must be given unless the service has exactly one; it has "
                        + (", ".join(names) or "none"),
                        "model",
                    )
                self._model = names[0]
            return self._model
