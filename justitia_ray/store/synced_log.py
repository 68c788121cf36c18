"""Sync the append-only files of an embedded Redis to the disk.

With Redis's own `appendfsync everysec`, Redis answers up to two seconds before it writes to the
file while the disk is slow, and these writes are lost if Redis is killed. So Redis is configured to
write without syncing, and this module calls fsync.

Redis refuses writes while it cannot write to the file, but does not notice if the system later
fails to write its cache to disk. The system reports that failure once, to processes that have the
file open, and then treats the data as written. So the files are kept open here, and after a failure
Redis rewrites all data to a new file once the disk works again.
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
    """Sync the files of a Redis server to disk every second until it has ended.

    Args:
        data_dir: The server's directory.
        ended: Set once the server has ended.
        rewrite: Makes the server write all of its data to a new file; returns whether the server
            accepted the order.
    """
    log = SyncedLog(data_dir, rewrite)
    while not ended.wait(_EVERY_S):
        log.sync()
    log.close()


class SyncedLog:
    """Append-only files of a Redis server, and their syncs to disk."""

    def __init__(self, data_dir: Path, rewrite: Callable[[], bool]) -> None:
        self._data_dir = data_dir
        self._rewrite = rewrite
        self._open: dict[Path, BinaryIO] = {}
        self._synced: dict[Path, int] = {}
        """Size of each file at its last sync, in bytes."""
        self._failures = 0
        self._is_incomplete = False
        """Whether the disk may lack data after a failed sync; the system reports the failure only
        once.
        """

    def sync(self) -> None:
        """Sync new and grown files to disk; failures are logged."""
        failures = self._failures
        try:
            found = {*self._data_dir.glob("*.aof"), *self._data_dir.glob("appendonlydir/*.aof")}
        except OSError as error:
            self._note_failure(self._data_dir, error)
            return
        for path in self._open.keys() - found:
            self._close_file(path)
        for path in sorted(found):
            try:
                self._sync_file(path)
            except FileNotFoundError:  # Redis replaces its files from time to time.
                self._close_file(path)
            except OSError as error:
                self._note_failure(path, error)
        if self._is_incomplete and self._failures == failures:
            self._is_incomplete = not self._rewrite()

    def close(self) -> None:
        for path in list(self._open):
            self._close_file(path)

    def _sync_file(self, path: Path) -> None:
        status = path.stat()
        log = self._open.get(path)
        if log is None or os.fstat(log.fileno()).st_ino != status.st_ino:
            self._close_file(path)
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

    def _close_file(self, path: Path) -> None:
        self._synced.pop(path, None)
        log = self._open.pop(path, None)
        if log is not None:
            log.close()

    def _note_failure(self, path: Path, error: OSError) -> None:
        """Log the 1st, 2nd, 4th, 8th failure and so on."""
        self._failures += 1
        if self._failures.bit_count() == 1:
            logger.error(
                "store.embedded_not_synced",
                extra={"path": str(path), "reason": str(error), "failed_so_far": self._failures},
            )
