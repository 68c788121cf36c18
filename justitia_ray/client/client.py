"""Asynchronous client, and the application that an agent opens with it."""

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode

import httpx

from justitia_ray.client.calls import Completion, JsonCalls, Sleep, completion
from justitia_ray.client.transport import HandleTransport, HttpTransport, Transport
from justitia_ray.errors import RequestError, ResponseError, UnknownModel
from justitia_ray.protocol.endpoints import (
    APPLICATION_HEADER,
    CLASS_HEADER,
    DEADLINE_HEADER,
    TENANT_HEADER,
)
from justitia_ray.units import ApplicationId, KvTokenTime, Seconds, Tokens, VirtualTime

T = TypeVar("T")


async def fan_out(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently and return their results in order.

    The first failure cancels the other calls, which frees their resources in the service, and is
    raised unchanged. (`asyncio.TaskGroup` would wrap it, and `asyncio.gather` would not cancel the
    others.).

    ```
    texts = await fan_out(app.chat(part, max_tokens=200) for part in parts)
    ```
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except* Exception as failures:
        first = failures.exceptions[0]
    else:
        return [task.result() for task in tasks]
    raise first


Messages = str | Sequence[Mapping[str, Any]]
"""A user message as text, or a conversation in OpenAI's form."""

_LEAVE_WITHIN_S: Seconds = 10.0
"""Maximum seconds that closing an application may block its agent; the service ends idle
applications anyway.
"""

_log = logging.getLogger(__name__)


class Application:
    """Group of inferences with one common result; created by `JustitiaClient.application`.

    An async context manager, entered once. Entering opens the application in the service. Leaving
    closes the application; an exception or a cancellation cancels it with all its unfinished
    inferences. Leaving never raises an error: the answers have already arrived, and the service
    ends applications that were not closed.

    Attributes:
        application_class: Class of the application; predictions are learned per class.
        tenant: Tenant of the application, if given.
        inferences: Number of inferences answered so far.
        prompt_tokens: Prompt tokens of the answered inferences, as the engine counted them.
        output_tokens: Output tokens of the answered inferences.
    """

    def __init__(
        self,
        calls: JsonCalls,
        model: Callable[[], Awaitable[str]],
        application_class: str,
        *,
        input: str,
        tenant: str | None = None,
        weight: float | None = None,
        application_id: ApplicationId | None = None,
        opened_for: str | None = None,
        deadline_s: Seconds | None = None,
    ) -> None:
        for field, value in {
            "application_class": application_class,
            "tenant": tenant,
            "application_id": application_id,
        }.items():
            _check_header_value(field, value)
        self.application_class = application_class
        self.tenant = tenant
        self.inferences = 0
        self.prompt_tokens: Tokens = 0
        self.output_tokens: Tokens = 0
        self._calls = calls
        self._model = model
        model_name = {
            "application_class": application_class,
            "input": input,
            "tenant": tenant,
            "weight": weight,
            "application_id": application_id,
            "model": opened_for,
            "deadline_s": deadline_s,
        }
        self._asked = {field: value for field, value in model_name.items() if value is not None}
        self._granted: dict[str, Any] | None = None

    async def __aenter__(self) -> Self:
        """Open the application at the service.

        Raises:
            ResponseError: If the service refused it, or the answer lacks a field.
            ConnectionError: If the service did not answer.
        """
        granted = await self._calls.call("POST", "/v1/applications", self._asked)
        for field in ("application_id", "predicted_kv_token_time", "virtual_finish_time"):
            if field not in granted:
                raise ResponseError(200, f"the answer to opening an application lacks {field}")
        self._granted = granted
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the application at the service, or cancel it if its agent failed."""
        verb, method, path = ("cancel", "DELETE", self._application_path)
        if kind is None:
            verb, method, path = ("close", "POST", f"{self._application_path}/close")
        try:
            async with asyncio.timeout(_LEAVE_WITHIN_S):
                await self._calls.call(method, path, headers=self._tenant_headers)
        except (ResponseError, ConnectionError, TimeoutError) as failure:
            _log.warning(
                "application.%s_failed",
                verb,
                extra={"application_id": self.application_id, "error": str(failure)},
            )

    @property
    def was_opened(self) -> bool:
        """Whether the service has opened the application, so that its id and tag are known."""
        return self._granted is not None

    @property
    def application_id(self) -> ApplicationId:
        """Id of the application, chosen by the caller or by the service."""
        return str(self._open_answer["application_id"])

    @property
    def predicted_kv_token_time(self) -> KvTokenTime | None:
        """Predicted cost of the whole application, in token·iterations.

        None if several models are served and the application was opened without naming one: then
        each model predicts its own cost on the first call.
        """
        predicted = self._open_answer["predicted_kv_token_time"]
        return None if predicted is None else float(predicted)

    @property
    def virtual_finish_time(self) -> VirtualTime | None:
        """Virtual finish time F of the application; None if the policy has no virtual time."""
        tag = self._open_answer["virtual_finish_time"]
        return None if tag is None else float(tag)

    async def status(self) -> dict[str, Any]:
        """Return the current state of the application at the service.

        Raises:
            ResponseError: If the service no longer knows the application.
            ConnectionError: If the service did not answer.
        """
        return await self._calls.call("GET", self._application_path, headers=self._tenant_headers)

    async def chat(
        self,
        /,
        messages: Messages,
        *,
        max_tokens: Tokens | None = None,
        deadline_s: Seconds | None = None,
        **fields: Any,
    ) -> Completion:
        """Run one inference on a conversation and return the model's answer.

        Args:
            messages: A user's message, or a conversation in OpenAI's form.
            max_tokens: Maximum output tokens. Recommended: it limits the KV reserved for the call.
            deadline_s: Longest wait for the inference's start; None: the application's. An
                inference that cannot start in time is answered with 504, `deadline_missed`.
            **fields: Any other field of the OpenAI request or of vLLM's, e.g. `temperature`.

        Raises:
            ResponseError: If the service answered with an error.
            ConnectionError: If the service did not answer.
        """
        body = await self._request_body({"messages": _as_messages(messages)}, max_tokens, fields)
        return await self._run_inference("/v1/chat/completions", body, deadline_s)

    async def complete(
        self,
        /,
        prompt: str,
        *,
        max_tokens: Tokens | None = None,
        deadline_s: Seconds | None = None,
        **fields: Any,
    ) -> Completion:
        """Run one inference on a plain prompt, with the arguments and errors of `chat`."""
        body = await self._request_body({"prompt": prompt}, max_tokens, fields)
        return await self._run_inference("/v1/completions", body, deadline_s)

    async def chat_stream(
        self,
        /,
        messages: Messages,
        *,
        max_tokens: Tokens | None = None,
        deadline_s: Seconds | None = None,
        **fields: Any,
    ) -> AsyncGenerator[str]:
        """Run one inference on a conversation and yield its text as it is generated.

        Closing the generator cancels the inference. A loop that may end early should therefore
        close it at once, with `contextlib.aclosing`, and not leave that to the garbage collector.

        Raises:
            RequestError: If more than one choice is requested: the texts would be mixed.
            ResponseError: If the service answered, or ended the stream, with an error.
            ConnectionError: If the service did not answer, or the stream broke off.
        """
        if fields.get("n", 1) != 1:
            raise RequestError(f"chat_stream gives one choice; n must be 1, got {fields['n']}", "n")
        usage = {"stream_options": {"include_usage": True}}
        body = await self._request_body(
            {"messages": _as_messages(messages), "stream": True}, max_tokens, usage | fields
        )
        headers = self._inference_headers(deadline_s)
        async with aclosing(self._calls.events("/v1/chat/completions", body, headers)) as events:
            async for event in events:
                if event.get("usage"):
                    self._count_tokens(event["usage"])
                for choice in event.get("choices", ()):
                    if text := choice["delta"].get("content"):
                        yield text
        self.inferences += 1

    async def _run_inference(
        self, path: str, body: Mapping[str, Any], deadline_s: Seconds | None
    ) -> Completion:
        headers = self._inference_headers(deadline_s)
        answer = completion(await self._calls.call("POST", path, body, headers))
        self.inferences += 1
        self._count_tokens(answer.raw["usage"])
        return answer

    async def _request_body(
        self, prompt: Mapping[str, Any], max_tokens: Tokens | None, fields: Mapping[str, Any]
    ) -> dict[str, Any]:
        limit = {} if max_tokens is None else {"max_tokens": max_tokens}
        model = {} if "model" in fields else {"model": await self._model()}
        return {**model, **prompt, **limit, **fields}

    def _count_tokens(self, usage: Mapping[str, Any]) -> None:
        self.prompt_tokens += usage.get("prompt_tokens") or 0
        self.output_tokens += usage.get("completion_tokens") or 0

    @property
    def _open_answer(self) -> dict[str, Any]:
        if self._granted is None:
            raise RuntimeError("the application is not open: enter it with `async with` first")
        return self._granted

    @property
    def _application_path(self) -> str:
        return f"/v1/applications/{quote(self.application_id, safe='')}"

    def _inference_headers(self, deadline_s: Seconds | None) -> dict[str, str]:
        # With class and tenant in each call, a service that lost the application can reopen it.
        return {
            APPLICATION_HEADER: self.application_id,
            CLASS_HEADER: self.application_class,
            **self._tenant_headers,
            **({} if deadline_s is None else {DEADLINE_HEADER: f"{deadline_s:.6f}"}),
        }

    @property
    def _tenant_headers(self) -> dict[str, str]:
        return {} if self.tenant is None else {TENANT_HEADER: self.tenant}


def _as_messages(messages: Messages) -> list[dict[str, Any]]:
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return [dict(message) for message in messages]


def _check_header_value(field: str, value: str | None) -> None:
    if value is None:
        return
    if not value or not value.isascii() or not value.isprintable() or value != value.strip():
        raise RequestError(
            f"{field} travels in a header and must be printable ASCII without spaces at its ends,"
            f" got {value!r}",
            field,
        )


class JustitiaClient:
    """Client of the service: opens applications and runs their inferences.

    ```
    async with (
        JustitiaClient.connect("http://localhost:8000") as client,
        client.application("MRS", input=document) as app,
    ):
        answer = await app.chat("Summarise …", max_tokens=200)
    ```

    One client serves any number of applications at once. It belongs to one event loop.

    Args:
        transport: Connection to the service; the client closes it.
        model: Default model. None: the only model of the service.
        tenant: Default tenant of applications.
        max_retries: Maximum number of retries of a call that the service cannot have started (no
            connection, 429, 503).
        sleep: Waits the given number of seconds before a retry; replaced in tests.

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
        self._transport = transport
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
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> Self:
        """Return a client that calls the service over HTTP; see `HttpTransport`.

        Raises:
            ConfigError: If `base_url` is not an http(s) URL, or `max_retries` is negative.
        """
        http = HttpTransport(base_url, headers=headers, api_key=api_key, transport=transport)
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
        """Return a client that calls the service's Ingress deployment through a Ray Serve handle.

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
        """Close all connections of the client. Calling it twice is safe."""
        await self._transport.aclose()

    def application(
        self,
        application_class: str,
        *,
        input: str,
        tenant: str | None = None,
        weight: float | None = None,
        application_id: ApplicationId | None = None,
        model: str | None = None,
        deadline_s: Seconds | None = None,
    ) -> Application:
        """Return a new application, which `async with` opens and closes.

        Args:
            application_class: Class, e.g. `MRS`; the cost is predicted from class and input, so
                agents that work alike should share a class.
            input: Text that the application's user submitted.
            tenant: Tenant of the application; by default the client's tenant.
            weight: Share of service relative to others, from 0.001 to 1,000,000; 1 by default.
            application_id: Id chosen by the caller; by default the service chooses one.
            deadline_s: Longest time that each inference may wait for its start, above 0 and at most
                a week, unless the call gives another; None: the setting of the tenant's node.
            model: Model of calls that name none; by default the client's. Without either, if
                several models are served, every call has to name one.

        Raises:
            RequestError: If a name cannot travel in a header.
        """

        async def model_name() -> str:
            return await self.default_model() if model is None else model

        return Application(
            self._calls,
            model_name,
            application_class,
            input=input,
            tenant=self._tenant if tenant is None else tenant,
            weight=weight,
            application_id=application_id,
            opened_for=self._named_model if model is None else model,
            deadline_s=deadline_s,
        )

    async def models(self) -> tuple[str, ...]:
        """Return the names of the models that the service serves.

        Raises:
            ResponseError: If the service answered with an error, or with something other than a
                list of models.
            ConnectionError: If the service did not answer.
        """
        answer = await self._calls.call("GET", "/v1/models")
        try:
            return tuple(str(model["id"]) for model in answer["data"])
        except (KeyError, TypeError) as error:
            raise ResponseError(200, "the answer is not a list of models") from error

    async def find_application(
        self, application_id: ApplicationId, tenant: str | None = None
    ) -> dict[str, Any]:
        """Return the state of an application at the service, including its predicted start and end.

        The outlook contains the reason for waiting, the position, and the expected start and end.

        Args:
            application_id: The application's id.
            tenant: Tenant of the application; None: the credential's tenant.

        Raises:
            ResponseError: If the service does not know the application.
            ConnectionError: If the service did not answer.
        """
        headers = {} if tenant is None else {TENANT_HEADER: tenant}
        path = f"/v1/applications/{quote(application_id, safe='')}"
        return await self._calls.call("GET", path, headers=headers)

    async def list_applications(self, most: int = 20, model: str | None = None) -> dict[str, Any]:
        """Return the caller's first live applications by model, and counts of further ones.

        Args:
            most: Maximum number of applications described per model.
            model: Return only this model's applications; None: of all models.

        Raises:
            ResponseError: If the service answered with an error.
            ConnectionError: If the service did not answer.
        """
        query = {"most": str(most)} | ({} if model is None else {"model": model})
        return await self._calls.call("GET", f"/v1/applications?{urlencode(query)}")

    async def default_model(self) -> str:
        """Return the client's model; without one, the only model of the service, requested once.

        Raises:
            UnknownModel: If the service has no model, or several models.
            ResponseError: If the service answered with an error.
            ConnectionError: If the service did not answer.
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
