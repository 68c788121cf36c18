"""Third-party programs, each in its own virtual environment under `out/tools`."""

import subprocess
import sys
from pathlib import Path

from justitia_ray.errors import JustitiaError

_ROOT = Path(__file__).parents[2]
_VERSIONS = {"aiperf": "0.13.0", "vllm-router": "0.1.17"}


def tool_path(name: str) -> Path:
    version = _VERSIONS[name]
    home = _ROOT / "out" / "tools" / f"{name}-{version}"
    program = home / "bin" / name
    if not program.exists():
        uv = Path(sys.executable).with_name("uv")
        _run_installer(
            [str(uv), "venv", "--quiet", "--clear", "--python", sys.executable, str(home)]
        )
        python = str(home / "bin" / "python")
        _run_installer(
            [str(uv), "pip", "install", "--quiet", "--python", python, f"{name}=={version}"]
        )
    return program


def _run_installer(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise JustitiaError(f"{command[0]}: {error.strerror} (scripts/setup installs it)") from None
    if done.returncode:
        raise JustitiaError(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
