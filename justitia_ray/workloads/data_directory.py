"""Where recorded runs, inputs and arrivals are: what `--data` names, else JUSTITIA_DATA."""

import os
from pathlib import Path
from typing import Literal, overload

from justitia_ray.errors import ConfigError


@overload
def data_directory(given: Path | None, *, required: Literal[True]) -> Path: ...
@overload
def data_directory(given: Path | None, *, required: bool) -> Path | None: ...


def data_directory(given: Path | None, *, required: bool) -> Path | None:
    """Return the data directory, None if there is none and none is required.

    Args:
        given: What `--data` names; it goes before the environment.
        required: Whether the command cannot do without.

    Raises:
        ConfigError: If what is named is no directory, or nothing is named and one is required.
    """
    in_environment = os.environ.get("JUSTITIA_DATA")
    if given is not None:
        found, source = given, "--data"
    elif in_environment:
        found, source = Path(in_environment), "JUSTITIA_DATA"
    elif required:
        raise ConfigError("--data must name the data directory, or JUSTITIA_DATA; neither is set")
    else:
        return None
    if not found.is_dir():
        raise ConfigError(f"{source} must be a directory, got {str(found)!r}")
    return found
