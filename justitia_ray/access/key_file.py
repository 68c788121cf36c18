"""File of API keys, which is reloaded when it changes, and changed by one process at a time."""

import fcntl
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeAlias

from justitia_ray.access.keys import KeyRecord, KeyTable, NewKey, read_records, write_records
from justitia_ray.atomic_files import replacing
from justitia_ray.errors import ConfigError

MOST_BYTES = 16 * 2**20
"""Maximum size of a key file; enough for some 70,000 keys."""
_NEW_MODE = 0o600

_Version: TypeAlias = tuple[int, int, int]
"""Modification time in ns, size and inode of a key file. The inode changes when Kubernetes replaces
a mounted secret.
"""


class KeyFile:
    """File of API keys that can be reloaded; its owner calls `refresh` periodically.

    Args:
        path: The file.
        on_trouble: Called with the reason, once for each change that leaves the file unreadable.
            The reason contains neither a key nor a digest.

    Raises:
        ConfigError: If the file cannot be read, or has a mistake.
    """

    def __init__(self, path: Path, on_trouble: Callable[[str], None] = lambda reason: None) -> None:
        self._path = path
        self._on_trouble = on_trouble
        self._version, data = _read_version(path)
        self._table = KeyTable(_parse_records(path, data))
        self._mistake: str | None = None
        self._unreadable: str | None = None

    @property
    def table(self) -> KeyTable:
        """API keys of the last valid version of the key file."""
        return self._table

    @property
    def trouble(self) -> str | None:
        """Error in the key file's present content; None if that content is in use."""
        return self._unreadable or self._mistake

    def refresh(self) -> bool:
        """Reload the key file if it has changed; return whether new content was loaded.

        If the file is missing or has a mistake, the last valid keys stay in use.
        """
        try:
            if _version_of(os.stat(self._path)) == self._version:
                self._unreadable = None
                return False
            version, data = _read_version(self._path)
        except OSError as error:
            return self._report_unreadable(
                f"{self._path}: cannot be read: {error.strerror or error}"
            )
        except ConfigError as error:
            return self._report_unreadable(str(error))
        self._version, self._unreadable, self._mistake = version, None, None
        try:
            self._table = KeyTable(_parse_records(self._path, data))
        except ConfigError as error:
            self._mistake = str(error)
            self._on_trouble(self._mistake)
            return False
        return True

    def _report_unreadable(self, reason: str) -> bool:
        if reason != self._unreadable:
            self._unreadable = reason
            self._on_trouble(reason)
        return False


def read_key_file(path: Path) -> tuple[KeyRecord, ...]:
    """Return the API keys of a file.

    Raises:
        ConfigError: If the file cannot be read, or has a mistake.
    """
    return _parse_records(path, _read_version(path)[1])


def add_key(path: Path, make: Callable[[Collection[str]], NewKey]) -> NewKey:
    """Create an API key, add it to a key file, and return it.

    Args:
        path: The file; the call waits while another process changes it.
        make: Creates the key, given the ids of the existing ones.

    Raises:
        ConfigError: If the file has a mistake, or cannot be read or written; the file is then not
            changed.
    """
    with _lock_directory(path) as target:
        records = read_key_file(target) if target.exists() else ()
        new = make({record.key_id for record in records})
        _replace_file(target, (*records, new.record))
    return new


def remove_key(path: Path, key_id: str) -> KeyRecord | None:
    """Remove an API key from a key file; return its record, or None if its id is not found.

    Raises:
        ConfigError: Like `add_key`, and if the file is missing.
    """
    with _lock_directory(path) as target:
        records = read_key_file(target)
        found = next((record for record in records if record.key_id == key_id), None)
        if found is not None:
            _replace_file(target, (record for record in records if record is not found))
    return found


@contextmanager
def _lock_directory(path: Path) -> Iterator[Path]:
    """Lock the directory of a key file; yield the file's path without symlinks.

    Not the file but its directory is locked, because the file is replaced meanwhile.
    """
    target = path.resolve()
    try:
        directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield target
    finally:
        os.close(directory)


def _replace_file(path: Path, records: Iterable[KeyRecord]) -> None:
    """Replace a key file with the same owner and mode; only its owner can read a new file."""
    before = path.stat() if path.exists() else None
    with replacing(path) as file:
        if before is not None:
            os.fchown(file.fileno(), before.st_uid, before.st_gid)
        os.fchmod(file.fileno(), _NEW_MODE if before is None else stat.S_IMODE(before.st_mode))
        file.write(write_records(records).encode())
        file.flush()
        os.fsync(file.fileno())


def _parse_records(path: Path, data: bytes) -> tuple[KeyRecord, ...]:
    try:
        return read_records(data.decode())
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _read_version(path: Path) -> tuple[_Version, bytes]:
    """Return a file's content with its version, read first so that later changes are noticed.

    A change during the read gives another version, so the next refresh reads the file again.
    """
    try:
        with _open_without_blocking(path) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{path}: is no regular file")
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{path}: has more than {MOST_BYTES:,} bytes, the most that is read")
    return _version_of(found), data


def _open_without_blocking(path: Path) -> BinaryIO:
    # Without O_NONBLOCK, opening a named pipe waits for a writer.
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def _version_of(found: os.stat_result) -> _Version:
    return found.st_mtime_ns, found.st_size, found.st_ino
