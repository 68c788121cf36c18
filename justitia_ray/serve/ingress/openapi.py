"""The OpenAPI 3.1 description of the HTTP API, read from `openapi.yaml` beside this file."""

from importlib.resources import files
from typing import Any

import yaml

from justitia_ray import __version__

DESCRIPTION_PATH = "/openapi.json"


def description() -> dict[str, Any]:
    """Return the OpenAPI description of the HTTP API, with the version of this package."""
    text = (files(__package__) / "openapi.yaml").read_text(encoding="utf-8")
    # The safe YAML loader in C is ten times as fast.
    document: dict[str, Any] = yaml.load(text, yaml.CSafeLoader)
    document["info"]["version"] = __version__
    return document
