"""What all sections of the YAML have in common, and the forms of values that several use."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


class Section(BaseModel):
    """A frozen part of the schema; a key that it does not name is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)
