"""Files of the embedded Redis are synced to disk, and disk failures are handled."""

import errno
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.store import synced_log
from justitia_ray.store.synced_log import SyncedLog, keep_synced


class FakeRewrite:
    """Fake function that asks the Redis server to rewrite its data, and counts the calls."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_up = True

    def __call__(self) -> bool:
        self.asked += 1
        return self.is_up


@pytest.fixture
def fake_rewrite() -> FakeRewrite:
    return FakeRewrite()


@pytest.fixture
def log(tmp_path: Path, fake_rewrite: FakeRewrite) -> Iterator[SyncedLog]:
    log = SyncedLog(tmp_path, fake_rewrite)
    yield log
    log.close()


@pytest.fixture
def synced_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: sizes.append(os.fstat(number).st_size))
    return sizes


def test_new_and_grown_log_files_are_synced(
    tmp_path: Path, log: SyncedLog, fake_rewrite: FakeRewrite, synced_sizes: list[int]
) -> None:
    file = tmp_path / "appendonly.aof"
    file.write_bytes(b"x" * 10)
    log.sync()
    log.sync()
    file.write_bytes(b"x" * 20)
    log.sync()
    (tmp_path / "rewritten").write_bytes(b"y" * 20)
    (tmp_path / "rewritten").rename(file)
    log.sync()

    assert [10, 20, 20] == synced_sizes
    assert 0 == fake_rewrite.asked


def test_multi_part_log_files_of_redis_7_are_synced(
    tmp_path: Path, log: SyncedLog, synced_sizes: list[int]
) -> None:
    folder = tmp_path / "appendonlydir"
    folder.mkdir()
    (folder / "appendonly.aof.1.incr.aof").write_bytes(b"x" * 30)
    log.sync()

    assert [30] == synced_sizes


def test_log_files_stay_open_until_they_are_deleted(
    tmp_path: Path, log: SyncedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux reports a failed write only to processes that have the file open."""
    numbers: list[int] = []
    monkeypatch.setattr(os, "fsync", numbers.append)
    file = tmp_path / "appendonly.aof"
    for size in (1, 2):
        file.write_bytes(b"x" * size)
        log.sync()
    os.fstat(numbers[0])
    file.unlink()
    log.sync()

    assert numbers[0] == numbers[1]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(numbers[0])


def test_log_is_rewritten_after_a_disk_failure(
    tmp_path: Path,
    log: SyncedLog,
    fake_rewrite: FakeRewrite,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After a failed sync, the kernel counts the unwritten data as written."""
    (tmp_path / "appendonly.aof").write_bytes(b"x")
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", _raise_io_error)
        for _ in range(5):
            log.sync()
    assert 0 == fake_rewrite.asked
    failed = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert ["store.embedded_not_synced"] * 3 == [record.getMessage() for record in failed]
    assert [1, 2, 4] == [vars(record)["failed_so_far"] for record in failed]
    assert "input/output error" in vars(failed[0])["reason"]

    fake_rewrite.is_up = False
    log.sync()
    fake_rewrite.is_up = True
    log.sync()
    log.sync()
    assert 2 == fake_rewrite.asked


def test_log_sync_continues_after_running_out_of_file_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced_sizes: list[int]
) -> None:
    monkeypatch.setattr(synced_log, "_EVERY_S", 0.0)
    (tmp_path / "appendonly.aof").write_bytes(b"x" * 10)
    ended, glob, rounds = threading.Event(), Path.glob, 0

    def glob_failing_at_first(path: Path, pattern: str) -> Any:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            raise OSError(errno.EMFILE, "too many open files")
        if rounds > 5:
            ended.set()
        return glob(path, pattern)

    monkeypatch.setattr(Path, "glob", glob_failing_at_first)
    keep_synced(tmp_path, ended, lambda: True)

    assert [10] == synced_sizes


def _raise_io_error(number: int) -> None:
    raise OSError(errno.EIO, "input/output error")
