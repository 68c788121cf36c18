"""Decide why an engine process ended: by its own work, or by a kill from outside.

Exceptions, aborts and fault signals are the engine's own: a call may have caused them. Signals that
people and supervisors send are kills from outside. The kernel also sends SIGKILL, when memory is
short; these kills count as the engine's own work, and the kernel counts them.
"""

import signal
from pathlib import Path

_FROM_OUTSIDE = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
)
_COUNTERS = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))
"""Files with the kernel's count `oom_kill`: of this container, or of the whole machine."""


def ended_by_itself(exit_code: int | None, *, out_of_memory: bool) -> bool:
    """Return whether an engine may have ended through its own work, by its process's exit code.

    Args:
        exit_code: Exit code of the engine's process, negative for a signal; None: the engine has
            failed but its process has not ended yet.
        out_of_memory: Whether the kernel has recently killed a process for lack of memory.
    """
    if exit_code is None or exit_code > 0:
        return True
    if -exit_code == signal.SIGKILL and out_of_memory:
        return True
    return exit_code != 0 and -exit_code not in _FROM_OUTSIDE


def count_oom_kills(counters: tuple[Path, ...] = _COUNTERS) -> int:
    """Return the number of processes that the kernel killed for lack of memory; 0 if unknown."""
    for path in counters:
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0
