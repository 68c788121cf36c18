"""`prediction`: estimates of what applications cost, and the training of models for them."""

from typing import Annotated

from pydantic import Field, model_validator

from justitia_ray.config.section import Positive, Section
from justitia_ray.predictor.least_samples import LEAST_MINIMUM_SAMPLES


class PredictionSection(Section):
    """The predictor deployment, and what is done without it."""

    deadline_s: Positive = 0.02
    """An application is not held up longer than this for its estimate."""
    prior_output_tokens: Annotated[int, Field(gt=0)] = 256
    """Output expected of a call that says no `max_tokens` (LMSYS mean: data of the VTC paper)."""
    max_classes: Annotated[int, Field(gt=0)] = 256
    """Classes made by callers are bounded; the rest share `other`."""
    replicas: Annotated[int, Field(gt=0, le=64)] = 1
    """One answers thousands a second; more are for when one dies."""
    minimum_samples: Annotated[int, Field(ge=LEAST_MINIMUM_SAMPLES)] = 10
    """Applications with known inputs from which on a class has a model."""
    history_per_class: Annotated[int, Field(ge=100, le=100_000)] = 500
    """What models are trained on: with so many a training takes 20 s of one core, and a class of
    long inputs some 10 MB."""
    models_dir: str | None = None
    """Models of `justitia predictor train` to begin with; on every node of the predictor."""
    store_inputs: bool = False
    """Whether the texts of inputs are kept in Redis; their features always are."""
    training_timeout_s: Positive = 900.0
    """A training that takes longer is given up. It has the least priority: one of 20 s takes
    minutes on cores that are never idle."""

    @model_validator(mode="after")
    def _history_holds_what_a_model_takes(self) -> "PredictionSection":
        if self.minimum_samples > self.history_per_class:
            raise ValueError(
                f"minimum_samples is {self.minimum_samples}: at most history_per_class, "
                f"{self.history_per_class}, is allowed"
            )
        return self
