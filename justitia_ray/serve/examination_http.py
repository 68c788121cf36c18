"""`GET /v1/examination`: every part's own view of each model.

For operators: it holds ids of applications, which callers may have chosen, and no texts.
"""

import asyncio
from typing import Any

from fastapi import FastAPI

from justitia_ray.serve.examination_calls import ExaminationCalls
from justitia_ray.serve.models import ServedModel, ServedModels


def add_examination(app: FastAPI, models: ServedModels) -> None:
    """Add its path, if the models are examined."""
    if models.first.examination is None:
        return

    @app.get("/v1/examination")
    async def examination(model: str | None = None) -> dict[str, Any]:
        if models.only is not None or model is not None:
            return await _examined(models.named(model))
        found = await asyncio.gather(*(_examined(m) for m in models))
        return {"models": {m.name: answer for m, answer in zip(models, found, strict=True)}}


async def _examined(model: ServedModel) -> dict[str, Any]:
    return (await _of(model).examine()).model_dump(mode="json")


def _of(model: ServedModel) -> ExaminationCalls:
    if model.examination is None:
        raise TypeError(f"model {model.name} is not examined")
    return model.examination
