"""Root causes of failed engine starts, which vLLM writes to the log only.

vLLM's engine runs in processes of its own. If one fails during the start, vLLM raises an error that
says "See root cause above", and the cause is in the log of the replica's process.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

_REFERS_TO_LOG = "See root cause above"
_READ_BYTES = 256 * 1024
"""Length of the end of a log that is searched."""
_ERROR_OF_ENGINE = re.compile(
    r"\((?:EngineCore|Worker)[^)]*\)\s+(?:ERROR\s[^\]]*\]\s*)?"
    r"((?:\w+\.)*\w*(?:Error|Exception|Exit)\b: .+)$"
)
"""A line by which a process of the engine ends a traceback, as vLLM marks and logs it."""
_OUTPUTS = (1, 2)
"""Descriptors of standard output and error, which Ray redirects to the log files."""


class StartLog:
    """Log files of this process and of those that it starts, from the present end on."""

    def __init__(self) -> None:
        self._sizes: dict[Path, int] = {}
        for descriptor in _OUTPUTS:
            with suppress(OSError):
                path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
                if path.is_file():
                    self._sizes[path] = path.stat().st_size

    def cause_of(self, error: Exception) -> str:
        """Return the error in one line; if it refers to the log, the engine's own error there."""
        said = " ".join(str(error).split())
        return (_REFERS_TO_LOG in said and self._last_error()) or said

    def _last_error(self) -> str | None:
        found = None
        for path, size in self._sizes.items():
            with suppress(OSError), path.open("rb") as log:
                log.seek(max(size, path.stat().st_size - _READ_BYTES))
                for line in log.read().decode(errors="replace").splitlines():
                    if match := _ERROR_OF_ENGINE.search(line):
                        found = match[1].strip()
        return found
