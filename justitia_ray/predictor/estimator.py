"""What applications are expected to cost, by the best that is known of their class.

In this order: a model of the class, if the input is known; the mean of the class; classes whose
inputs have a like form; one inference of the request's own size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from justitia_ray.predictor.class_life import ClassLife
from justitia_ray.predictor.class_mean import ClassMeanPredictor
from justitia_ray.predictor.estimate import Estimate
from justitia_ray.predictor.input_features import InputFeatures
from justitia_ray.predictor.neighbours import cost_among_neighbours
from justitia_ray.units import Tokens


@dataclass(frozen=True, slots=True)
class EstimateRequest:
    """An application to estimate."""

    application_class: str
    input_tokens: Tokens
    max_tokens: Tokens | None
    """Most output tokens of one of its inferences; None if not bounded."""
    features: InputFeatures | None = None
    """Of its input, if that is known."""


class Estimator:
    """Reads what a predictor knows; changes nothing."""

    def __init__(self, table: ClassMeanPredictor, lives: Mapping[str, ClassLife]) -> None:
        """Read from here on.

        Args:
            table: The means of the classes.
            lives: Their models, and the form of their inputs.
        """
        self._table = table
        self._lives = lives

    def estimate_many(self, requests: Sequence[EstimateRequest]) -> list[Estimate]:
        """Return what each application is expected to cost, one pass a class.

        Raises:
            RequestError: If a class's name has another form or a count is below its least.
        """
        estimates = [
            self._table.estimate(
                request.application_class, request.input_tokens, request.max_tokens
            )
            for request in requests
        ]
        modelled: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            name = self._table.filed_under(request.application_class)
            life = self._lives.get(name)
            if request.features is None:
                continue
            if life is not None and life.model is not None:
                modelled.setdefault(name, []).append(i)
            elif estimates[i].source == "prior":
                estimates[i] = self._by_neighbours(request.features, estimates[i])
        for name, places in modelled.items():
            model = self._lives[name].model
            assert model is not None
            inputs = [f for i in places if (f := requests[i].features) is not None]
            for i, predicted in zip(places, model.predict(inputs), strict=True):
                estimates[i] = Estimate(
                    kv_token_time=float(predicted.kv_token_time),
                    p10=float(predicted.p10),
                    p90=float(predicted.p90),
                    output_tokens=estimates[i].output_tokens,
                    source="model",
                )
        return estimates

    def _by_neighbours(self, features: InputFeatures, prior: Estimate) -> Estimate:
        known = (
            (life.form, mean)
            for name, life in sorted(self._lives.items())
            if (mean := self._table.log_mean(name)) is not None
        )
        cost = cost_among_neighbours(features, prior.kv_token_time, known)
        if cost is None:
            return prior
        # As wide as the prior's, around another middle.
        spread = prior.p90 / prior.kv_token_time
        return Estimate(cost, cost / spread, cost * spread, prior.output_tokens, "neighbours")
