"""`model`: what is served."""

from typing import Annotated

from pydantic import Field, model_validator

from justitia_ray.config.section import Section

ModelName = Annotated[str, Field(min_length=1, max_length=200)]


class ModelSection(Section):
    """What is served."""

    name: ModelName
    """The name that callers put in `model`."""
    path: str
    """A local directory, a hub name, or a `random:` model (random weights, built on the spot)."""
    cache_dir: str = "~/.cache/justitia_ray/models"
    """Where a random model is built."""
    adapters: dict[ModelName, str] = Field(default={})
    """LoRA adapters: the name that callers put in `model`, and a directory or hub name."""

    @property
    def names(self) -> tuple[str, ...]:
        """What callers may put in `model`: all of it shares one queue."""
        return (self.name, *self.adapters)

    @model_validator(mode="after")
    def _names_differ(self) -> "ModelSection":
        if self.name in self.adapters:
            raise ValueError(f"adapters: {self.name!r} is the model's own name; name it otherwise")
        return self
