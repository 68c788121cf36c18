"""The inference endpoints over HTTP: those that wait in a queue, those that any replica answers.

Which there are stands in `protocol.endpoints`; the answers are vLLM's.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from justitia_ray.errors import JustitiaError
from justitia_ray.protocol.endpoints import ASIDE_PATHS, INFERENCE_PATHS
from justitia_ray.protocol.error_forms import error_in_form
from justitia_ray.protocol.headers import APPLICATION_HEADER, TENANT_HEADER
from justitia_ray.protocol.status import error_headers, status_of
from justitia_ray.serve.attempts import Attempts
from justitia_ray.serve.http_answers import answered, stream, unary
from justitia_ray.serve.models import ServedModels

ReadBody = Callable[[Request], Awaitable[bytes]]
_Answer = Callable[[Request], Awaitable[Response]]


def add_inference(app: FastAPI, models: ServedModels, read_body: ReadBody) -> None:
    """Add the paths; their only state are the attempts with an idempotency key.

    Args:
        app: The application.
        models: What is served.
        read_body: Reads a request's body and bounds it.
    """
    section = models.first.config.ingress
    attempts = Attempts(section.retry_linger_s, section.retry_kept_s, section.retry_kept_bytes)
    for path in INFERENCE_PATHS:
        app.post(path)(_answers_by_error(path, _inference(path, models, read_body, attempts)))
    for path in ASIDE_PATHS:
        app.post(path)(_answers_by_error(path, _aside(path, models, read_body)))


def _answers_by_error(path: str, answer: _Answer) -> _Answer:
    """Let errors be answered in the form that clients of this path read."""

    async def answer_or_error(request: Request) -> Response:
        try:
            return await answer(request)
        except JustitiaError as error:
            body = error_in_form(path, error)
            return JSONResponse(body, status_of(error)[0], error_headers(error))

    return answer_or_error


def _inference(path: str, models: ServedModels, read_body: ReadBody, attempts: Attempts) -> _Answer:
    keepalive_s = models.first.config.ingress.keepalive_s

    async def infer(request: Request) -> Response:
        raw = await read_body(request)
        gateway = models.asked_for(raw).gateway
        await gateway.check_served(path)
        body = gateway.parse(path, raw)
        headers = {name.lower(): value for name, value in request.headers.items()}
        key = headers.get("idempotency-key")
        if key is None:
            items = gateway.answer(path, headers, body)
        else:
            caller = (headers.get(TENANT_HEADER, ""), headers.get(APPLICATION_HEADER, ""), key)
            items = attempts.join(
                hashlib.sha256(json.dumps(caller).encode()).hexdigest(),
                path.encode() + raw,
                lambda: gateway.answer(path, headers, body),
            )
        if body.stream:
            return await stream(path, items, keepalive_s)
        return await unary(path, items)

    return infer


def _aside(path: str, models: ServedModels, read_body: ReadBody) -> _Answer:
    async def ask(request: Request) -> Response:
        raw = await read_body(request)
        return answered(path, await models.asked_for(raw).gateway.aside(path, raw))

    return ask
