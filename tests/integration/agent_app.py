"""Agent application inside Serve that calls the service through a deployment handle."""

import asyncio
from typing import Any

from ray import serve
from ray.serve import Application

from justitia_ray.client import JustitiaClient, fan_out


class Agent:
    """Serve deployment whose methods make many calls under one Serve request."""

    def __init__(self, service: str) -> None:
        self._client = JustitiaClient.from_handle(serve.get_deployment_handle("Ingress", service))

    async def ask_all(self, count: int) -> list[str]:
        async with self._client.application("fan-out", input="") as app:
            answers = await fan_out(app.complete(f"part {i}", max_tokens=8) for i in range(count))
        return [answer.text for answer in answers]

    async def ask_and_cancel_one(self, count: int, long: int) -> list[bool]:
        """Start `count` calls, cancel the first after the second's answer; return the others."""
        async with self._client.application("siblings", input="") as app:
            calls = [
                asyncio.create_task(app.complete(f"part {i}", max_tokens=long if i == 0 else 8))
                for i in range(count)
            ]
            await calls[1]
            calls[0].cancel()
            results = await asyncio.gather(*calls, return_exceptions=True)
        return [not isinstance(result, BaseException) for result in results]


def build(args: dict[str, Any]) -> Application:
    return serve.deployment(Agent, max_ongoing_requests=100).bind(args["service"])
