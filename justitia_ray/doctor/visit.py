"""A visit of the doctor: two snapshots of a running service and its Redis; it only reads."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from justitia_ray.client.inspection import ask_each_model
from justitia_ray.client.transport import Transport
from justitia_ray.doctor.rule import Snapshot
from justitia_ray.errors import StoreError
from justitia_ray.protocol.inspection import Inspection, read_inspection
from justitia_ray.store.scheduler_store import SchedulerStore
from justitia_ray.units import Seconds

_SAVES = 3.0
"""Number of save intervals between the two snapshots, so that changes before the first are in Redis
by the second.
"""

_PREDICTOR_S: Seconds = 5.0

OpenStore = Callable[[Inspection], SchedulerStore | None]


async def visit(
    transport: Transport, open_store: OpenStore, interval_s: Seconds, model: str | None = None
) -> list[tuple[Snapshot, Snapshot]]:
    """Return two snapshots of each model of a service.

    Args:
        transport: Connection to the service.
        open_store: Returns a store to read for the inspection of a model, or None; `visit` closes
            the store.
        interval_s: Shortest time between the snapshots (seconds).
        model: The only model to inspect; None: all served models.

    Raises:
        ConnectionError: If the service does not answer.
        ResponseError: If the service answers with an error, or with something other than an
            inspection.
        ConfigError: If a store cannot be opened.
    """
    before = await _look_at_service(transport, model)
    stores: list[SchedulerStore | None] = []
    try:
        for look in before:
            # `finally` must close the stores that are open if a later one fails.
            stores.append(open_store(look.seen))  # noqa: PERF401
        before = await _read_stores(stores, before)
        await asyncio.sleep(max(interval_s, *map(_seconds_until_saved, stores, before)))
        after = await _read_stores(stores, await _look_at_service(transport, model))
    finally:
        for store in stores:
            if store is not None:
                await store.aclose()
    return list(zip(before, after, strict=True))


def _seconds_until_saved(store: SchedulerStore | None, look: Snapshot) -> Seconds:
    return 0.0 if store is None or look.store is None else _SAVES * look.store.save_interval_s


async def _look_at_service(transport: Transport, model: str | None) -> list[Snapshot]:
    """Read the state of each model of a service, without Redis."""
    answers = await ask_each_model(transport, "/v1/examination", model, _PREDICTOR_S)
    return [
        Snapshot(
            read_inspection(of_model.service),
            predictor_trouble=of_model.predictor.get("error"),
            predictor_learns=bool(of_model.predictor.get("learns", True)),
            answer=of_model.service,
        )
        for of_model in answers.values()
    ]


async def _read_stores(
    stores: list[SchedulerStore | None], looks: list[Snapshot]
) -> list[Snapshot]:
    return [
        look if store is None else await _read_store(store, look)
        for store, look in zip(stores, looks, strict=True)
    ]


async def _read_store(store: SchedulerStore, look: Snapshot) -> Snapshot:
    try:
        return replace(look, stored=await store.load())
    except StoreError as error:
        if await store.ping():
            return replace(look, redis_damage=str(error))
        return replace(look, redis_away=str(error))
