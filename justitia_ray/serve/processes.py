"""The processes that an engine started, and their end."""

import psutil  # type: ignore[import-untyped]

from justitia_ray.units import Seconds

_KILL_WAIT_S: Seconds = 5.0
"""How long a killed process may take to go; freeing the memory of a large model takes seconds."""


class ProcessTree:
    """Processes and their descendants, remembered while their parents still live.

    A process that is killed leaves its children to init, where nobody finds them by parent. Pid
    reuse is harmless: psutil compares start times before it kills.
    """

    def __init__(self) -> None:
        self._processes: list[psutil.Process] = []

    def add(self, pid: int) -> None:
        """Remember a process and all its present descendants."""
        process = psutil.Process(pid)
        self._processes += [process, *process.children(recursive=True)]

    def kill(self) -> None:
        """Kill what is left of them and wait until it is gone. Blocks; safe to call twice."""
        left = [process for process in self._processes if process.is_running()]
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=_KILL_WAIT_S)
        self._processes = []
