"""The private directory of an embedded Redis: its mode, its socket's path, its locks."""

import fcntl
import hashlib
import os
import stat
import tempfile
from pathlib import Path

from justitia_ray.errors import StoreError

_SOCKET_NAME = "redis.sock"
_MAX_SOCKET_PATH_BYTES = 100
"""`sun_path` holds 104 bytes on macOS and 108 on Linux, with a closing zero."""


def socket_path(data_dir: Path) -> Path:
    """Return where the server of `data_dir`, an absolute path, listens.

    In the directory itself, or, if that path is too long for a socket, in a directory of this user
    under the system's temporary one, whose name follows from `data_dir`.

    Raises:
        StoreError: If that path is too long as well.
    """
    inside = data_dir / _SOCKET_NAME
    if len(os.fsencode(inside)) < _MAX_SOCKET_PATH_BYTES:
        return inside
    digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]
    outside = Path(tempfile.gettempdir()) / f"justitia-{os.geteuid()}-{digest}" / _SOCKET_NAME
    if len(os.fsencode(outside)) >= _MAX_SOCKET_PATH_BYTES:
        raise StoreError(
            f"{inside} and {outside} are too long for a socket: less than {_MAX_SOCKET_PATH_BYTES}"
            " bytes are allowed; name a shorter data directory, or set TMPDIR to a shorter path"
        )
    return outside


def make_private(directory: Path) -> None:
    """Create a directory with mode 0700, or make sure that an existing one is private.

    An existing one that is open to others is closed to them if it is empty, and refused otherwise:
    it may be a home or a shared directory that was named by mistake.

    Raises:
        StoreError: If it cannot be made, belongs to another user, is a link or is open to others.
    """
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        # Not followed: under a temporary directory anyone could have put a link there first.
        status = directory.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise StoreError(f"{directory}: a directory of user {os.geteuid()} itself is needed")
        if stat.S_IMODE(status.st_mode) & 0o077:
            if any(directory.iterdir()):
                raise StoreError(
                    f"{directory} has mode {stat.S_IMODE(status.st_mode):04o} and is not empty:"
                    " name a directory of its own, or close it to others (chmod 700)"
                )
            directory.chmod(0o700)
    except OSError as error:
        raise StoreError(f"{directory}: cannot be used as a private directory: {error}") from error


def try_lock(path: Path) -> int | None:
    """Lock a file and return its descriptor, or None if someone else holds the lock.

    The lock goes with the open file: closing the descriptor ends it, and so does the end of the
    last process that has it, however it ends.

    Raises:
        StoreError: If the file cannot be opened or locked.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
    except OSError as error:
        raise StoreError(f"{path}: cannot be locked: {error}") from error
    return descriptor
