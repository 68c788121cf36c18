"""What the HTTP surface asks of a predictor."""

from typing import Any

from ray.exceptions import RayError, RayTaskError
from ray.serve.handle import DeploymentHandle

from justitia_ray.errors import AdmissionError, JustitiaError, StoreError
from justitia_ray.serve.replica_calls import in_fresh_context


class PredictorCalls:
    """What the HTTP surface asks of the Predictor deployment."""

    def __init__(self, predictor: DeploymentHandle) -> None:
        self._predictor = predictor

    async def overview(self) -> dict[str, Any]:
        """Return what is known of each class."""
        found: dict[str, Any] = await self._ask("overview")
        return found

    async def roll_back(
        self, application_class: str, version: int | None, release: bool
    ) -> dict[str, Any]:
        """Let an earlier version serve, or release it."""
        found: dict[str, Any] = await self._ask("roll_back", application_class, version, release)
        return found

    async def take_history(self, samples: list[dict[str, Any]]) -> int:
        """Learn from a part of a user's own history."""
        return int(await self._ask("take_history", samples))

    async def _ask(self, method: str, *arguments: Any) -> Any:
        async def call() -> Any:
            return await getattr(self._predictor, method).remote(*arguments)

        try:
            return await in_fresh_context(call())
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, JustitiaError) and not isinstance(cause, StoreError):
                raise cause from None
            raise AdmissionError(f"the predictor cannot do it now: {cause}") from None
        except RayError as error:
            raise AdmissionError(f"the predictor gives no answer: {error}") from None
