"""Report a crash of the replica's own process to the scheduler, as a death of its engine is.

A process that received SIGSEGV, SIGABRT, SIGBUS, SIGFPE or SIGILL can do little more than write,
and a scheduler that sees a connection end cannot distinguish a crash from a kill. So `faulthandler`
writes into a pipe, and a small process at its other end (`crash_sender`) sends a notice that was
signed in advance. Nothing is done while the replica runs. An `_exit`, or a fatal error of the
interpreter itself, leaves no text and looks like a kill.
"""

import base64
import faulthandler
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

from justitia_ray.config import TransportSection
from justitia_ray.observability.log_events import log_event
from justitia_ray.serve.transport.crash_notice import crash_notice
from justitia_ray.serve.transport.handshake import Offer, Peer

logger = logging.getLogger("ray.serve")

_SENDER = Path(__file__).with_name("crash_sender.py")
_STDERR = 2
_MOST_STARTS = 4
"""Maximum number of starts of the crash sender, which is restarted if it is killed."""


class CrashWatch:
    """Pipe and process that report a crash of this replica process to the scheduler."""

    def __init__(self, me: Peer, section: TransportSection) -> None:
        self._me = me
        tls = section.tls
        self._tls = None if tls is None else (tls.certificate, tls.key, tls.authority)
        self._pipe: int | None = None
        self._sender: subprocess.Popen[bytes] | None = None
        self._starts = 0

    def start(self) -> None:
        """Start the crash sender; if that fails, the replica works without it."""
        read_end, write_end = os.pipe()
        try:
            self._sender = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SENDER)],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Signals to this process group must not reach the sender.
            )
        except OSError as error:
            log_event(logger, logging.WARNING, "replica.crash_sender_failed", reason=str(error))
            os.close(write_end)
            return
        finally:
            os.close(read_end)
        self._starts += 1
        self._pipe = write_end
        faulthandler.enable(file=write_end, all_threads=False)
        if self._starts == 1:
            os.register_at_fork(after_in_child=self._close_pipe)

    def take_offer(self, offer: Offer) -> None:
        """Make the crash sender report to this scheduler instead of an earlier one."""
        order = {
            "address": offer.address,
            "tls": self._tls,
            "request": base64.b64encode(crash_notice(offer, self._me)).decode(),
        }
        line = json.dumps(order).encode() + b"\n"
        while self._pipe is not None:
            try:
                os.write(self._pipe, line)
            except BrokenPipeError:  # the sender was killed
                self.stop()
                if self._starts < _MOST_STARTS:
                    self.start()
                    continue
                reason = f"it has ended {self._starts} times"
                log_event(logger, logging.WARNING, "replica.crash_sender_failed", reason=reason)
            return

    def stop(self) -> None:
        self._close_pipe()
        if self._sender is not None:
            self._sender.kill()
            self._sender.wait()
            self._sender = None

    def _close_pipe(self) -> None:
        """Close this end of the pipe; also called in forks, whose crashes are not reported."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            faulthandler.enable(file=_STDERR, all_threads=False)
            os.close(pipe)
