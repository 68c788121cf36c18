"""Puts what an embedded Redis has written to its append-only files on the disk.

Redis's own way to do that every second, `appendfsync everysec`, answers before it writes to the
file while the disk is slow, for up to two seconds: what it has answered by then is lost with it if
it is killed. So it is told to write and to leave the rest to the system, and this does the rest.

Redis refuses writes while it cannot write to the file, and hears nothing of a disk that fails
later, as the system puts there what it has taken. The system says so once, to those that have the
file open, and holds what it could not write as written. So the files stay open here, and once the
disk takes something again Redis writes all that it has to a new file.
"""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from justitia_ray.units import Seconds

logger = logging.getLogger(__name__)

_EVERY_S: Seconds = 1.0


def keep_synced(data_dir: Path, ended: threading.Event, rewrite: Callable[[], bool]) -> None:
    """Put on the disk what a server writes, again and again, until it has ended.

    Args:
        data_dir: The server's directory.
        ended: Set once it has ended.
        rewrite: Has the server write all of its data to a new file; returns whether it does.
    """
    log = SyncedLog(data_dir, rewrite)
    while not ended.wait(_EVERY_S):
        log.sync()
    log.close()


class SyncedLog:
    """The append-only files of a server."""

    def __init__(self, data_dir: Path, rewrite: Callable[[], bool]) -> None:
        """Open nothing yet; for the arguments see `keep_synced`."""
        self._data_dir = data_dir
        self._rewrite = rewrite
        self._open: dict[Path, BinaryIO] = {}
        self._synced: dict[Path, int] = {}
        """Size of each file as it was put on the disk."""
        self._failures = 0
        self._is_incomplete = False
        """Whether the disk may lack something, of which the system says nothing more."""

    def sync(self) -> None:
        """Put those files on the disk that have grown, or are new; what fails is logged."""
        failures = self._failures
        try:
            found = {*self._data_dir.glob("*.aof"), *self._data_dir.glob("appendonlydir/*.aof")}
        except OSError as error:
            self._note_failure(self._data_dir, error)
            return
        for path in self._open.keys() - found:
            self._forget(path)
        for path in sorted(found):
            try:
                self._sync_file(path)
            except FileNotFoundError:  # Redis replaces them now and then
                self._forget(path)
            except OSError as error:
                self._note_failure(path, error)
        if self._is_incomplete and self._failures == failures:
            self._is_incomplete = not self._rewrite()

    def close(self) -> None:
        """Close all files."""
        for path in list(self._open):
            self._forget(path)

    def _sync_file(self, path: Path) -> None:
        status = path.stat()
        log = self._open.get(path)
        if log is None or os.fstat(log.fileno()).st_ino != status.st_ino:
            self._forget(path)
            log = self._open[path] = path.open("rb")
        size = os.fstat(log.fileno()).st_size
        if self._synced.get(path) == size:
            return
        try:
            os.fsync(log.fileno())
        except OSError:
            self._is_incomplete = True
            self._synced.pop(path, None)
            raise
        self._synced[path] = size

    def _forget(self, path: Path) -> None:
        self._synced.pop(path, None)
        log = self._open.pop(path, None)
        if log is not None:
            log.close()

    def _note_failure(self, path: Path, error: OSError) -> None:
        """Log a failure, seldomer the more there are."""
        self._failures += 1
        if self._failures.bit_count() == 1:
            logger.error(
                "store.embedded_not_synced",
                extra={"path": str(path), "reason": str(error), "failed_so_far": self._failures},
            )
