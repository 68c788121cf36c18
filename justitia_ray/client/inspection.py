"""Query the state of a running service and of its predictor, by model.

Used by `justitia status` and `justitia doctor`. The answer of a service with one model does not
name the model.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from justitia_ray.client.calls import json_object
from justitia_ray.client.transport import Transport
from justitia_ray.errors import ResponseError
from justitia_ray.units import Seconds


@dataclass(frozen=True, slots=True)
class ModelAnswers:
    """Answers of the service's inspection endpoints about one model."""

    service: dict[str, Any]
    """Answer of the service to the requested path."""
    predictor: Mapping[str, Any]
    """Answer of `/v1/predictor`; if the request failed, its `error` has the reason."""


async def ask_each_model(
    transport: Transport,
    path: str,
    model: str | None,
    predictor_s: Seconds | None = None,
    **query: str | int,
) -> dict[str, ModelAnswers]:
    """Request a path for each served model; return the answers by model name.

    Args:
        transport: Connection to the service.
        path: `/v1/status` or `/v1/examination`.
        model: Model whose answers are returned; None: all models.
        predictor_s: Timeout for the predictor; None: the transport's own.
        query: Further parameters of the path's query.

    Raises:
        ConnectionError: If the service does not answer.
        ResponseError: If the service answers with an error; errors of the predictor are returned
            instead.
    """
    named = {} if model is None else {"model": model}
    answer = await _get_json(transport, path, query | named)
    try:
        asked = _get_json(transport, "/v1/predictor", named)
        predictor = await asyncio.wait_for(asked, predictor_s)
    except TimeoutError:
        predictor = {"error": f"no answer within {predictor_s:g} s"}
    except (ConnectionError, ResponseError) as error:
        predictor = {"error": str(error)}
    several = answer.get("models")
    if not isinstance(several, dict):
        return {str(answer.get("model", "model")): ModelAnswers(answer, predictor)}
    predictors = predictor.get("models", {})
    return {
        name: ModelAnswers(of_model, predictors.get(name, predictor))
        for name, of_model in several.items()
    }


async def _get_json(
    transport: Transport, path: str, query: Mapping[str, str | int]
) -> dict[str, Any]:
    target = f"{path}?{urlencode(query)}" if query else path
    return json_object(await transport.request("GET", target, {}))
