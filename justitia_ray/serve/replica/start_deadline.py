"""Deadline for an engine's start: a process that hangs is ended, so that Serve replaces it."""

import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil  # type: ignore[import-untyped]

from justitia_ray.observability.log_events import log_event
from justitia_ray.units import Seconds

logger = logging.getLogger("ray.serve")


@contextmanager
def start_deadline(limit_s: Seconds) -> Iterator[None]:
    """End this process and its child processes if the `with` block takes too long.

    vLLM waits without a limit for an engine process that hangs during its start, in one long call
    on the event loop's thread, which cannot be cancelled: hence the timer thread. Serve treats the
    ended process as a failed start, and tries again.

    Args:
        limit_s: Time limit for the block, in seconds.
    """
    timer = threading.Timer(limit_s, _end_process, [limit_s])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end_process(limit_s: Seconds) -> None:
    log_event(logger, logging.ERROR, "replica.start_timed_out", limit_s=limit_s)
    faulthandler.dump_traceback(file=sys.__stderr__ or 2)  # This shows where the process hangs.
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    os._exit(1)
