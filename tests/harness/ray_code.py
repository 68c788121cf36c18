"""Import path of this repository for Ray's processes: `tests` and `scripts` are in no wheel."""

import os
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]


def repository_environment() -> dict[str, Any]:
    """Return a Ray `runtime_env` whose processes import from this repository first."""
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}}
