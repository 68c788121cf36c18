"""Looks at a running service, and at its Redis. Reads only."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from justitia_ray.client.answers import json_object
from justitia_ray.client.paths import of_model
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
    """Two looks at one model, and the answers that they were read from."""

    first: Look
    second: Look
    answers: tuple[dict[str, Any], dict[str, Any]]
    saw_redis: bool


@dataclass(frozen=True, slots=True)
class _Seen:
    """One look at one model, and what it was read from."""

    answer: dict[str, Any]
    look: Look


async def visit(
    transport: Transport, open_store: OpenStore, interval_s: Seconds, model: str | None = None
) -> tuple[Visit, ...]:
    """Look at each model twice, at all of them at the same times.

    Args:
        transport: To the service.
        open_store: Given what the service says of a model, returns a store to read, or None; it is
            closed here.
        interval_s: Least time between the looks, in seconds.
        model: Only this one; None: all that are served.

    Raises:
        ConnectionError: If the service does not answer.
        ResponseError: If it answers with an error, or with what is no examination.
        ConfigError: If a store cannot be named.
    """
    before = await _ask(transport, model)
    stores: list[SchedulerStore | None] = []
    try:
        for seen in before:
            stores.append(open_store(seen.look.seen))  # noqa: PERF401 # those opened are closed
        before = await _read_each(stores, before)
        await asyncio.sleep(max(interval_s, *map(_saved_within_s, stores, before)))
        after = await _read_each(stores, await _ask(transport, model))
    finally:
        for store in stores:
            if store is not None:
                await store.aclose()
    return tuple(
        Visit(first.look, second.look, (first.answer, second.answer), store is not None)
        for first, second, store in zip(before, after, stores, strict=True)
    )


def _saved_within_s(store: SchedulerStore | None, seen: _Seen) -> Seconds:
    known = seen.look.store
    return 0.0 if store is None or known is None else _SAVES * known.save_interval_s


async def _ask(transport: Transport, model: str | None) -> list[_Seen]:
    """Return a look at each model."""
    path = of_model("/v1/examination", model)
    answer = json_object(await transport.request("GET", path, {}))
    predictor = await _ask_predictor(transport, model)
    several = answer.get("models")
    if not isinstance(several, Mapping):
        return [_seen(answer, predictor)]
    of_each: Any = predictor.get("models", {})
    return [
        _seen(of_one, of_each.get(name, {}) if "error" not in predictor else predictor)
        for name, of_one in several.items()
    ]


async def _ask_predictor(transport: Transport, model: str | None) -> Mapping[str, Any]:
    """Return what the predictor says; `error` says why it says nothing."""
    try:
        asked = transport.request("GET", of_model("/v1/predictor", model), {})
        return json_object(await asyncio.wait_for(asked, _PREDICTOR_S))
    except TimeoutError:
        return {"error": f"no answer within {_PREDICTOR_S:g} s"}
    except (ConnectionError, ResponseError) as error:
        return {"error": str(error)}


def _seen(answer: dict[str, Any], predictor: Mapping[str, Any]) -> _Seen:
    look = Look(
        read_examination(answer),
        predictor_trouble=predictor.get("error"),
        predictor_learns=bool(predictor.get("learns", True)),
    )
    return _Seen(answer, look)


async def _read_each(stores: list[SchedulerStore | None], seen: list[_Seen]) -> list[_Seen]:
    return [
        one if store is None else replace(one, look=await _read(store, one.look))
        for store, one in zip(stores, seen, strict=True)
    ]


async def _read(store: SchedulerStore, look: Look) -> Look:
    try:
        return replace(look, stored=await store.load())
    except StoreError as error:
        if await store.ping():
            return replace(look, redis_damage=str(error))
        return replace(look, redis_away=str(error))
