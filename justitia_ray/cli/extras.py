"""What of the package is only there with the `serve` extra."""

import importlib
from types import ModuleType

from justitia_ray.errors import ConfigError


def serve_module(name: str) -> ModuleType:
    """Import `justitia_ray.serve.NAME`, which needs Ray.

    Raises:
        ConfigError: If Ray, or what else the extra brings, is not installed.
    """
    try:
        return importlib.import_module(f"justitia_ray.serve.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("justitia_ray"):
            raise
        raise ConfigError(
            f"the Python module {error.name} is not installed, which this command needs: "
            "pip install 'justitia-ray[serve]'"
        ) from error
