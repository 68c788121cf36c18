"""Looks at a running service, and at its Redis. Reads only."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from justitia_ray.client.answers import json_object
from justitia_ray.client.transport import Transport
from justitia_ray.doctor.look import Look
from justitia_ray.errors import ResponseError, StoreError
from justitia_ray.protocol.examination import Examination, read_examination
from justitia_ray.store.scheduler_store import SchedulerStore
from justitia_ray.units import Seconds

_SAVES = 3.0
"""So many save intervals between two looks: what changed before the first is in Redis by then."""

_PREDICTOR_S: Seconds = 5.0

OpenStore = Callable[[Examination], SchedulerStore | None]


@dataclass(frozen=True, slots=True)
class Visit:
    """Two looks, and the answers that they were read from."""

    first: Look
    second: Look
    answers: tuple[dict[str, Any], dict[str, Any]]
    saw_redis: bool


async def visit(transport: Transport, open_store: OpenStore, interval_s: Seconds) -> Visit:
    """Look twice.

    Args:
        transport: To the service.
        open_store: Given what the service says of itself, returns a store to read, or None; it is
            closed here.
        interval_s: Least time between the looks, in seconds.

    Raises:
        ConnectionError: If the service does not answer.
        ResponseError: If it answers with an error, or with what is no examination.
        ConfigError: If the store cannot be named.
    """
    answer, first = await _ask(transport)
    store = open_store(first.seen)
    try:
        if store is not None:
            first = await _read(store, first)
        known = first.store
        least_s = 0.0 if store is None or known is None else _SAVES * known.save_interval_s
        await asyncio.sleep(max(interval_s, least_s))
        answer_again, second = await _ask(transport)
        if store is not None:
            second = await _read(store, second)
    finally:
        if store is not None:
            await store.aclose()
    return Visit(first, second, (answer, answer_again), store is not None)


async def _ask(transport: Transport) -> tuple[dict[str, Any], Look]:
    answer = json_object(await transport.request("GET", "/v1/examination", {}))
    seen = read_examination(answer)
    trouble, learns = None, True
    try:
        asked = transport.request("GET", "/v1/predictor", {})
        predictor = json_object(await asyncio.wait_for(asked, _PREDICTOR_S))
        learns = bool(predictor.get("learns", True))
    except TimeoutError:
        trouble = f"no answer within {_PREDICTOR_S:g} s"
    except (ConnectionError, ResponseError) as error:
        trouble = str(error)
    return answer, Look(seen, predictor_trouble=trouble, predictor_learns=learns)


async def _read(store: SchedulerStore, look: Look) -> Look:
    try:
        return replace(look, stored=await store.load())
    except StoreError as error:
        if await store.ping():
            return replace(look, redis_damage=str(error))
        return replace(look, redis_away=str(error))
