"""A deadline for the start of an engine: a process that hangs in it ends, for Serve to replace."""

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
    """End this process, and all that it has started, if the block takes longer.

    vLLM waits without end for an engine's process that hangs while it starts, in one long call on
    the thread of the event loop that nothing cancels: hence a thread. To Serve it is a start that
    has failed, and it tries again.

    Args:
        limit_s: Longest time that the block may take, in seconds.
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
    faulthandler.dump_traceback(file=sys.__stderr__ or 2)  # where it hangs
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    os._exit(1)
