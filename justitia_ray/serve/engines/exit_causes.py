"""Decide why an engine process ended: by its own work, or by a kill from outside.

Exceptions, aborts and fault signals are the engine's own: a call may have caused them. A signal
from people and supervisors is not, unless the kernel killed the process for lack of memory; the
kernel sends SIGKILL too, but counts it.
"""

import signal
from pathlib import Path

_FROM_OUTSIDE = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
)
_COUNTERS = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))
"""Files with the kernel's `oom_kill` count, of this container or of the whole machine."""


def ended_by_itself(exit_code: int | None, *, out_of_memory: bool) -> bool:
    """Return whether an exit code of an engine process shows that its own work may have ended it.

    Args:
        exit_code: Exit code of its process, negative for a signal; None: the engine has failed but
            its process has not ended yet.
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
