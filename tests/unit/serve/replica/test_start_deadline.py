"""A replica whose engine does not start in time ends its process."""

import asyncio
import subprocess
import sys
import threading

import psutil  # type: ignore[import-untyped]

from justitia_ray.serve.replica.start_deadline import start_deadline
from tests.eventually import eventually

_HANGING = """
import subprocess, sys, threading
from justitia_ray.serve.replica.start_deadline import start_deadline

child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
with start_deadline(0.01):
    threading.Event().wait()
"""


def is_running(pid: int) -> bool:
    """Return whether a process runs; a dead one is listed until its parent reaps it."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def test_replica_process_ends_if_its_engine_start_hangs() -> None:
    """Ray Serve would wait forever, and the engine would keep its memory."""
    command = [sys.executable, "-c", _HANGING]
    ended = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False, timeout=60
    )

    assert 1 == ended.returncode
    assert "replica.start_timed_out" in ended.stderr
    assert "threading.py" in ended.stderr, "the stacks say where it hangs"
    child = int(ended.stdout)
    await eventually(lambda: not is_running(child), "what it started has ended")


def test_engine_that_starts_in_time_is_not_ended() -> None:
    with start_deadline(3_600):
        (timer,) = (one for one in threading.enumerate() if isinstance(one, threading.Timer))
    timer.join(60)

    assert not timer.is_alive()
