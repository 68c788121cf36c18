"""Why the process of an engine ended: by itself, or from outside.

What it raises or aborts with, and the signals of its own faults, are its own: a call may have led
to them. A signal that people and supervisors send is not, unless the kernel killed it for want of
memory: that sends SIGKILL, too, and counts it.
"""

import signal
from pathlib import Path

_FROM_OUTSIDE = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
)
_COUNTERS = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))
"""Files that count the kernel's kills in `oom_kill`: of this container, or else of this machine."""


def ended_by_itself(exit_code: int | None, *, out_of_memory: bool) -> bool:
    """Return whether what ran on an engine may have ended it.

    Args:
        exit_code: Exit code of its process, minus the signal that ended it; None: it has failed,
            and its process is yet to end.
        out_of_memory: Whether the kernel has lately killed a process for want of memory.
    """
    if exit_code is None or exit_code > 0:
        return True
    if -exit_code == signal.SIGKILL and out_of_memory:
        return True
    return exit_code != 0 and -exit_code not in _FROM_OUTSIDE


def count_oom_kills(counters: tuple[Path, ...] = _COUNTERS) -> int:
    """Return how many processes the kernel has killed for want of memory; 0 if it does not say."""
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
