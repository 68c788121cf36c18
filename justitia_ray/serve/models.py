"""The models of an application, as the HTTP surface finds them: by what a request names."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from justitia_ray.config import AppConfig
from justitia_ray.errors import RequestError, UnknownModel, shown_short
from justitia_ray.protocol.json_body import read_object
from justitia_ray.serve.examination_calls import ExaminationCalls
from justitia_ray.serve.gateway import Gateway
from justitia_ray.serve.predictor_calls import PredictorCalls
from justitia_ray.serve.scheduler_calls import SchedulerCalls


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model, with the ways to its parts."""

    config: AppConfig
    gateway: Gateway
    scheduler: SchedulerCalls
    predictor: PredictorCalls | None = None
    """None: nothing is predicted, and no such path is served."""
    examination: ExaminationCalls | None = None
    """None: it is not examined."""

    @property
    def name(self) -> str:
        """Its own name; callers may use those of its adapters as well."""
        return self.config.model.name


class ServedModels:
    """One model or several, in the order of the arguments."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        """Take the models, at least one, whose names are distinct."""
        self._models = tuple(models)
        self._by_name = {name: model for model in models for name in model.config.model.names}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models)

    @property
    def only(self) -> ServedModel | None:
        """The model, if there is one; None if there are several to choose from."""
        return self._models[0] if len(self._models) == 1 else None

    @property
    def first(self) -> ServedModel:
        """The first; what all have in common is read from it."""
        return self._models[0]

    def asked_for(self, body: bytes) -> ServedModel:
        """Return the model that the body of an inference asks for.

        With one model the body is not looked at: whoever reads it checks the name.

        Raises:
            RequestError: If it is no JSON object that everybody reads alike, or names none of
                several.
            UnknownModel: If it names one that is not served.
        """
        if self.only is not None:
            return self.only
        return self.named(read_object(body).get("model"))

    def named(self, name: Any) -> ServedModel:
        """Return the model that a request names; None names the only one.

        Raises:
            RequestError: If it names none of several, or not by a string.
            UnknownModel: If it names one that is not served.
        """
        if name is None:
            if self.only is not None:
                return self.only
            raise RequestError(f"model is required: one of {self._choice()} is allowed", "model")
        if not isinstance(name, str):
            raise RequestError(f"model must be a string, not {type(name).__name__}", "model")
        if name not in self._by_name:
            are = "is" if len(self._by_name) == 1 else "are"
            raise UnknownModel(
                f"the model {shown_short(name)} does not exist; {self._choice()} {are} served here",
                "model",
            )
        return self._by_name[name]

    def chosen(self, name: str | None) -> tuple[ServedModel, ...]:
        """Return the model that a query names, or all of them.

        Raises:
            UnknownModel: If it names one that is not served.
        """
        return self._models if name is None else (self.named(name),)

    def _choice(self) -> str:
        return ", ".join(repr(name) for name in self._by_name)
