"""Puts what an embedded Redis has written to its append-only files on the disk.

Redis's own way to do that every second, `appendfsync everysec`, answers before it writes to the
file while the disk is slow, for up to two seconds: what it has answered by then is lost with it if
it is killed. So it is told to write and to leave the rest to the system, and this does the rest.
"""

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from justitia_ray.units import Seconds

_EVERY_S: Seconds = 1.0

_Synced = Mapping[Path, tuple[int, int]]
"""Inode and size of each file as it was put on the disk."""


def keep_synced(data_dir: Path, ended: threading.Event) -> None:
    """Put on the disk what a server writes, again and again, until it has ended."""
    synced: _Synced = {}
    while not ended.wait(_EVERY_S):
        synced = sync_log(data_dir, synced)


def sync_log(data_dir: Path, synced: _Synced) -> _Synced:
    """Put those files on the disk that have grown, or are new.

    Where that fails Redis cannot write either, refuses to, and says why.

    Args:
        data_dir: The server's directory.
        synced: What the last call returned.

    Returns:
        The files as they are on the disk now.
    """
    found: dict[Path, tuple[int, int]] = {}
    for path in (*data_dir.glob("*.aof"), *data_dir.glob("appendonlydir/*.aof")):
        with suppress(OSError), path.open("rb") as log:  # Redis replaces them now and then
            status = os.fstat(log.fileno())
            grown = status.st_ino, status.st_size
            if synced.get(path) != grown:
                os.fsync(log.fileno())
            found[path] = grown
    return found
