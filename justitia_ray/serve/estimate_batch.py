"""Estimates that are asked for together are made together."""

import asyncio
from collections.abc import Callable, Sequence

from justitia_ray.errors import RequestError
from justitia_ray.predictor.estimate import Estimate
from justitia_ray.predictor.estimator import EstimateRequest


class EstimateBatch:
    """Gathers the calls of one turn of the event loop; one that is alone waits for nobody.

    Not `serve.batch`: that holds a call back for a time, or answers it alone.
    """

    def __init__(
        self, estimate_many: Callable[[Sequence[EstimateRequest]], list[Estimate]]
    ) -> None:
        self._estimate_many = estimate_many
        self._waiting: list[tuple[EstimateRequest, asyncio.Future[Estimate]]] = []

    async def estimate(self, request: EstimateRequest) -> Estimate:
        """Return the estimate of one application.

        Raises:
            RequestError: As `estimate_many`, for this request alone.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Estimate] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._answer)
        self._waiting.append((request, answer))
        return await answer

    def _answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        open_calls = [(request, answer) for request, answer in waiting if not answer.done()]
        try:
            estimates = self._estimate_many([request for request, _ in open_calls])
        except RequestError as error:
            if len(open_calls) == 1:
                open_calls[0][1].set_exception(error)
                return
            for call in open_calls:  # each alone: only the one that is wrong gets the error
                self._waiting = [call]
                self._answer()
            return
        except Exception as error:  # a mistake of ours: the callers have an estimate of their own
            for _, answer in open_calls:
                answer.set_exception(error)
            return
        for (_, answer), estimate in zip(open_calls, estimates, strict=True):
            answer.set_result(estimate)
