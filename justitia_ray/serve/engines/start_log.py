"""Causes of failed engine starts, which vLLM writes only to the log.

vLLM's engine runs in separate processes. If one of them fails during the start, vLLM raises an
error that says "See root cause above", and the cause is in the log of the replica's process.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

_REFERS_TO_LOG = "See root cause above"
_READ_BYTES = 256 * 1024
"""Number of bytes at the end of a log file that are searched for an error."""
_ERROR_OF_ENGINE = re.compile(
    r"\((?:EngineCore|Worker)[^)]*\)\s+(?:ERROR\s[^\]]*\]\s*)?"
    r"((?:\w+\.)*\w*(?:Error|Exception|Exit)\b: .+)$"
)
"""Regular expression for the last line of a traceback in an engine process's log."""
_OUTPUTS = (1, 2)
"""File descriptors of standard output and error, which Ray redirects to log files."""


class StartLog:
    """Log files that this process and its child processes write from now on."""

    def __init__(self) -> None:
        self._sizes: dict[Path, int] = {}
        for descriptor in _OUTPUTS:
            with suppress(OSError):
                path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
                if path.is_file():
                    self._sizes[path] = path.stat().st_size

    def cause_of(self, error: Exception) -> str:
        """Return an error in one line; if it refers to the log, return the engine's own error."""
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
