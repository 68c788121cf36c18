"""The live service as a replay sees it: is it ready, what is it, and one streamed inference."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from justitia_ray.client import Application, HttpTransport, JustitiaClient
from justitia_ray.client.calls import JsonCalls, Sleep
from justitia_ray.client.paths import of_model
from justitia_ray.errors import ConfigError, ResponseError
from justitia_ray.protocol.headers import APPLICATION_HEADER, CLASS_HEADER, TENANT_HEADER
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.units import Seconds, Tokens

_READY_WITHIN_S: Seconds = 15.0
"""For an answer to `/readyz`; the service itself gives its scheduler 5 s."""


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """What a service is, before a replay."""

    model: str
    max_model_len: Tokens | None
    """Longest prompt and output together, if it says so."""
    policy: str
    kv_tokens: Tokens
    """KV memory of the largest replica."""
    status: Mapping[str, Any]
    """Its `/v1/status`."""


class LiveService:
    """A service over HTTP, without a limit on connections. An async context manager.

    Args:
        url: Where the application is served.
        sleep: Waits between attempts of a call that the service could not take.
        network: Takes the place of the network, for tests.

    Raises:
        ConfigError: If the URL is not an http(s) URL.
    """

    def __init__(
        self,
        url: str,
        *,
        sleep: Sleep = asyncio.sleep,
        network: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._url = url
        self._http = HttpTransport(url, transport=network)
        self._client = JustitiaClient(self._http, sleep=sleep)
        self._calls = JsonCalls(self._http, sleep=sleep)
        self._queue: str | None = None
        """The model whose queue is played to, where there are several."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def check_ready(self) -> None:
        """Find out whether inferences would run now.

        Raises:
            ConnectionError: If the service cannot be reached, or is not ready; says why.
        """
        try:
            async with asyncio.timeout(_READY_WITHIN_S):
                answer = await self._http.request("GET", "/readyz", {})
        except TimeoutError as error:
            raise ConnectionError(
                f"{self._url}: no answer to /readyz within {_READY_WITHIN_S:g} s"
            ) from error
        if answer.status != 200:
            reason = _reason(answer.body) or f"/readyz answered with status {answer.status}"
            raise ConnectionError(f"{self._url} is not ready: {reason}")

    async def facts(self, model: str | None) -> ServiceFacts:
        """Ask what the service is.

        Args:
            model: The model to ask for; None: the only one that it has.

        Raises:
            ConfigError: If it has no such model, or several to choose from.
            ResponseError: If it answers otherwise than a service of ours.
            ConnectionError: If it does not answer.
        """
        models = await self._calls.call("GET", "/v1/models")
        try:
            lengths = {str(m["id"]): m.get("max_model_len") for m in models["data"]}
        except (KeyError, TypeError, AttributeError) as error:
            raise self._is_other() from error
        if model is None and len(lengths) == 1:
            (model,) = lengths
        if model is None or model not in lengths:
            raise ConfigError(
                f"--model must be one that {self._url} serves ({', '.join(lengths) or 'none'}),"
                f" got {model!r}"
            )
        self._queue = model if len(lengths) > 1 else None
        status = await self.status()
        try:
            policy = str(status["policy"])
            kv_tokens = max(int(r["kv_tokens"]) for r in status["replicas"].values())
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._is_other() from error
        return ServiceFacts(model, lengths[model], policy, kv_tokens, status)

    async def status(self) -> dict[str, Any]:
        """Return `/v1/status` of the model that `facts` was asked for.

        Raises:
            ResponseError: If the service answered with an error.
            ConnectionError: If it did not answer.
        """
        return await self._calls.call("GET", of_model("/v1/status", self._queue))

    def _is_other(self) -> ResponseError:
        return ResponseError(200, f"{self._url} does not answer as this service does")

    def application(self, planned: WorkloadApplication) -> Application:
        """Return an application as the workload has it, to be entered with `async with`.

        Raises:
            RequestError: If one of its names cannot travel in a header.
        """
        return self._client.application(
            planned.application_class,
            input=planned.input,
            tenant=planned.tenant,
            weight=planned.weight,
            application_id=planned.application_id,
            model=self._queue,
        )

    def generate(
        self, planned: WorkloadApplication, model: str, prompt: Sequence[int], output_tokens: Tokens
    ) -> AsyncGenerator[dict[str, Any]]:
        """Run one inference of exactly that length, and yield the events of its stream.

        Raises:
            ResponseError: If the service answered, or ended the stream, with an error.
            ConnectionError: If it did not answer, or the stream broke off.
        """
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {
            APPLICATION_HEADER: planned.application_id,
            CLASS_HEADER: planned.application_class,
            TENANT_HEADER: planned.tenant,
        }
        return self._calls.events("/v1/completions", body, headers)


def _reason(body: bytes) -> str | None:
    try:
        return str(json.loads(body)["reason"])
    except (ValueError, KeyError, TypeError):
        return None
