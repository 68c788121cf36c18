"""Which files of an embedded Redis are put on the disk, and when again."""

import os
from pathlib import Path

import pytest

from justitia_ray.store.synced_log import sync_log


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the files that were put on the disk."""
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: sizes.append(os.fstat(number).st_size))
    return sizes


def test_files_are_put_on_the_disk_when_they_have_grown_or_are_new(
    tmp_path: Path, synced: list[int]
) -> None:
    log = tmp_path / "appendonly.aof"
    log.write_bytes(b"x" * 10)
    known = sync_log(tmp_path, {})
    known = sync_log(tmp_path, known)
    log.write_bytes(b"x" * 20)
    known = sync_log(tmp_path, known)
    (tmp_path / "rewritten").write_bytes(b"y" * 20)
    (tmp_path / "rewritten").rename(log)
    known = sync_log(tmp_path, known)

    assert [10, 20, 20] == synced


def test_files_of_redis_7_are_put_on_the_disk(tmp_path: Path, synced: list[int]) -> None:
    """It keeps several, in a directory of their own."""
    folder = tmp_path / "appendonlydir"
    folder.mkdir()
    (folder / "appendonly.aof.1.incr.aof").write_bytes(b"x" * 30)
    sync_log(tmp_path, {})

    assert [30] == synced


def test_disk_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis says what is wrong with it; the thread that syncs goes on."""
    (tmp_path / "appendonly.aof").write_bytes(b"x")
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", _fail)
        known = sync_log(tmp_path, {})

    assert {} == known


def _fail(number: int) -> None:
    raise OSError(5, "input/output error")
