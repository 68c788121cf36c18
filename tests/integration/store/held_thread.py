"""Suspension of one thread of another process, as if in a system call that never returns."""

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SEIZE, _INTERRUPT = 0x4206, 0x4207
_WALL = 0x40000000
"""Flag of `waitpid` (`__WALL`) that includes threads of other processes."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long] * 4


def thread_id_of(process_id: int, name: str) -> int | None:
    for task in Path(f"/proc/{process_id}/task").iterdir():
        if (task / "comm").read_text().strip() == name:
            return int(task.name)
    return None


@contextmanager
def held_until_killed(process_id: int, thread_id: int) -> Iterator[None]:
    """Suspend a thread during a `with` block; its process is killed at the end."""
    for request in (_SEIZE, _INTERRUPT):
        if _libc.ptrace(request, thread_id, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"ptrace of thread {thread_id}")
    os.waitpid(thread_id, _WALL)
    try:
        yield
    finally:
        os.kill(process_id, signal.SIGKILL)
        os.waitpid(thread_id, _WALL)  # A process ends only when its threads are reaped.
