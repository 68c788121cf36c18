"""Inference endpoints over HTTP as plain ASGI: whole answers and streams.

The table of endpoints is in `protocol.endpoints`; the answers are vLLM's. These paths carry nearly
all calls: a framework's request and response objects would add a tenth to the ingress's cost.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from justitia_ray.application_key import application_key
from justitia_ray.errors import JustitiaError, RequestError
from justitia_ray.protocol.endpoints import (
    APPLICATION_HEADER,
    INFERENCE_PATHS,
    UNSCHEDULED_PATHS,
    read_tier,
)
from justitia_ray.protocol.inference_body import read_object
from justitia_ray.protocol.stream_forms import Keepalive, stream_form
from justitia_ray.recognition.harnesses import counts_chunks
from justitia_ray.serve.asgi import AsgiApp, Message, Receive, Send
from justitia_ray.serve.ingress.body_room import HeldBody
from justitia_ray.serve.ingress.door import context_of
from justitia_ray.serve.ingress.http_body import BodyReader
from justitia_ray.serve.ingress.http_deadline import within_time
from justitia_ray.serve.ingress.http_errors import error_response, unforeseen_response
from justitia_ray.serve.ingress.http_streams import (
    KeepaliveTerms,
    Reply,
    as_head,
    ended_in_form,
    rest_of,
    send_stream,
)
from justitia_ray.serve.ingress.idempotency import IdempotentAttempts
from justitia_ray.serve.ingress.models import ServedModel, ServedModels
from justitia_ray.serve.ingress.recognition import ApplicationFinder
from justitia_ray.serve.ingress.replica_calls import StreamItem
from justitia_ray.serve.ingress.request_context import RequestContext
from justitia_ray.units import ApplicationId, Seconds


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine for a caller, and cancel it if the caller disconnects first."""
    task = asyncio.current_task()
    assert task is not None
    has_left = False

    async def watch_for_disconnect() -> None:
        nonlocal has_left
        while (await receive())["type"] != "http.disconnect":
            pass
        has_left = True
        task.cancel()

    watcher = asyncio.create_task(watch_for_disconnect())
    try:
        await work
    except asyncio.CancelledError:
        if not has_left or task.uncancel():
            raise
    finally:
        watcher.cancel()


Respond = Callable[[Reply, RequestContext, bytes, HeldBody], Coroutine[Any, Any, None]]
"""Coroutine function that answers an inference call, given the reply, the context and the request
body.
"""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """ASGI application of one POST path; errors are answered as on all other routes."""

    path: str
    bodies: BodyReader
    respond: Respond
    limit_s: Seconds | None = None
    """Maximum seconds of a call from its head to the end of its answer; None: no limit."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        reply, context = Reply(self.path, send), context_of(scope)
        try:
            async with ended_in_form(reply), within_time(scope, self.limit_s):
                encodings = _header_values(scope, b"content-encoding")
                declared = _declared_length(scope)
                with self.bodies.room.hold(context.tenant) as held:
                    body = await self.bodies.read_body(held, declared, receive, encodings)
                    await until_disconnect(receive, self.respond(reply, context, body, held))
        except JustitiaError as error:
            if reply.begun:
                raise  # The stream has reported the error, and Ray Serve counts it by class.
            await error_response(self.path, error, reply.standings())(scope, receive, send)
        except Exception as error:
            response = unforeseen_response(self.path, error)
            if not reply.begun:
                await response(scope, receive, send)
            raise


async def _close_at_other_models(
    models: ServedModels, model: ServedModel, key: ApplicationId
) -> None:
    """Close an application at all models except `model`, where its last inference closes it."""
    others = [other.scheduler.close_application(key) for other in models if other is not model]
    # A scheduler that does not answer ends the application later, when it is idle.
    await asyncio.gather(*others, return_exceptions=True)


def _keepalive_of(context: RequestContext, configured: Keepalive) -> Keepalive:
    """Return the form of keepalive events that the call's client understands."""
    if configured is Keepalive.EVENT and counts_chunks(context.headers):
        return Keepalive.CHUNK
    return configured


def _declared_length(scope: Message) -> str:
    return next(iter(_header_values(scope, b"content-length")), "")


def _header_values(scope: Message, name: bytes) -> list[str]:
    return [v.decode("latin-1") for k, v in scope["headers"] if k == name]


def inference_endpoints(
    models: ServedModels,
    bodies: BodyReader,
    finder: ApplicationFinder,
    limit_s: Seconds | None = None,
) -> dict[str, AsgiApp]:
    """Return the inference endpoints by path, which share idempotent attempts and body memory.

    Args:
        models: The served models.
        bodies: Reads request bodies.
        finder: Finds the application of each call.
        limit_s: Time limit of a call; None: no limit.
    """
    section = models.first.config.ingress
    idempotent = IdempotentAttempts(
        section.retry_linger_s, section.retry_kept_s, section.retry_kept_bytes
    )

    closings: set[asyncio.Task[None]] = set()

    def close_at_other_models(model: ServedModel, context: RequestContext) -> None:
        """Start to close an application; no call waits for the schedulers of other models."""
        assert context.application_id is not None
        key = application_key(context.tenant, context.application_id)
        closing = asyncio.get_running_loop().create_task(_close_at_other_models(models, model, key))
        closings.add(closing)
        closing.add_done_callback(closings.discard)

    async def infer(reply: Reply, context: RequestContext, raw: bytes, held: HeldBody) -> None:
        since, asked = asyncio.get_running_loop().time(), context.keepalive
        async with held.turn():
            fields = await held.read(read_object, raw)
            model = models.asked_for(fields)
            gateway = model.gateway
            gateway.check_path(reply.path)
            refused: RequestError | None = None
            try:
                body = await held.read(gateway.parse, reply.path, raw, fields)
                context = replace(context, tier=read_tier(fields))
                if body.stream:
                    form = stream_form(reply.path, body.payload)
                    chosen = asked or _keepalive_of(context, Keepalive(section.keepalive))
                    reply.keep_alive(form, KeepaliveTerms(section.keepalive_s, chosen), since)
                    reply.on_failure = gateway.note_failed_stream
                body = await gateway.counted(context, body)
            except RequestError as error:
                # An unserved path is the first error that callers see.
                refused = error
        held.release()
        await gateway.check_served(reply.path)
        if refused is not None:
            raise refused
        found = await finder.find(context, reply.path, fields)
        reply.standings = partial(gateway.standings, found.context)
        if found.context.is_final and models.only is None:
            close_at_other_models(model, found.context)
        key = context.idempotency_key
        if key is None and not body.stream:
            answer = await gateway.attempts.answer(reply.path, found.context, body)
            await found.read_answer(answer)
            await reply.send_whole(answer)
            return

        application_id = found.context.application_id
        named = None
        if application_id is not None:
            # A retry joins an attempt whose application id may differ if it begins a conversation.
            if key is None or not found.context.begins_conversation:
                reply.early_head = {APPLICATION_HEADER: application_id}
            named = application_key(found.context.tenant, application_id)
        wait = gateway.outlooks.wait(named)

        def stream() -> AsyncGenerator[StreamItem]:
            attempts = gateway.attempts
            items = attempts.stream(reply.path, found.context, body, wait.note_application)
            return found.reading(items, stream=body.stream)

        if key is None:
            items = stream()
        else:
            # A retry joins its attempt by the application id that the caller sent.
            scope = (context.tenant, context.application_id, key)
            items = idempotent.join_attempt(
                hashlib.sha256(json.dumps(scope).encode()).hexdigest(),
                reply.path.encode() + raw,
                stream,
            )
        if body.stream:
            await send_stream(reply, items, wait)
            return
        async with aclosing(items):
            status, head = as_head(await anext(items))
            whole = await rest_of(items)
        await reply.send_whole((status, head, whole))

    async def answer_without_lease(
        reply: Reply, context: RequestContext, raw: bytes, held: HeldBody
    ) -> None:
        async with held.turn():
            fields = await held.read(read_object, raw)
            gateway = models.asked_for(fields).gateway
            payload = await held.read(gateway.name_body, raw, fields)
        del fields  # Parsed fields take up to ten times the memory of the body.
        answer = await gateway.unscheduled(reply.path, payload)
        held.release()
        await reply.send_whole(answer)

    responds: dict[str, Respond] = dict.fromkeys(INFERENCE_PATHS, infer)
    responds |= dict.fromkeys(UNSCHEDULED_PATHS, answer_without_lease)
    return {path: Endpoint(path, bodies, respond, limit_s) for path, respond in responds.items()}
