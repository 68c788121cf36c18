"""A file is replaced as a whole or not at all."""

import gzip
import os
from pathlib import Path
from typing import IO, AnyStr

import pytest

from justitia_ray.atomic_files import replacing, replacing_text
from justitia_ray.errors import ConfigError


def fail_halfway(file: IO[AnyStr], half: AnyStr, error: Exception) -> None:
    file.write(half)
    raise error


def test_atomic_write_replaces_the_file_at_its_end(tmp_path: Path) -> None:
    """Readers see the old file until the new one is complete."""
    path = tmp_path / "model.bin"
    path.write_bytes(b"old")

    with replacing(path) as file:
        file.write(b"new")
        seen_meanwhile = path.read_bytes()

    assert b"old" == seen_meanwhile
    assert b"new" == path.read_bytes()
    assert ["model.bin"] == os.listdir(tmp_path)


def test_old_file_stays_after_a_failed_write(tmp_path: Path) -> None:
    """Half a file must not replace a whole one after any error."""
    path = tmp_path / "model.bin"
    path.write_bytes(b"old")

    with pytest.raises(RuntimeError, match="bug"), replacing(path) as file:
        fail_halfway(file, b"half", RuntimeError("bug"))

    assert b"old" == path.read_bytes()
    assert ["model.bin"] == os.listdir(tmp_path)


@pytest.mark.parametrize("packed", [False, True])
def test_full_disk_is_reported_with_the_file(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "w.jsonl"
    path.write_bytes(b"old")

    with (
        pytest.raises(ConfigError, match=r"w\.jsonl: cannot be written: No space left on device$"),
        replacing_text(path, packed=packed) as file,
    ):
        fail_halfway(file, "half", OSError(28, "No space left on device"))

    assert b"old" == path.read_bytes()
    assert ["w.jsonl"] == os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["missing/w.json", "file/w.json", "directory"])
def test_unwritable_path_is_named_in_the_error(tmp_path: Path, name: str) -> None:
    """The directory is missing or is a file, or the file's place is a directory."""
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()

    with (
        pytest.raises(ConfigError, match=f"{name}: cannot be written"),
        replacing_text(tmp_path / name),
    ):
        pass

    assert ["directory", "file"] == sorted(os.listdir(tmp_path))


def test_error_names_a_path_without_a_file_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match=r"^\.: cannot be written"), replacing(Path()):
        pass

    assert [] == os.listdir(tmp_path)


def test_compressed_text_is_reproducible(tmp_path: Path) -> None:
    """A checksum identifies the content, but gzip by default stores time and name."""
    paths = [tmp_path / "a.gz", tmp_path / "b.gz"]

    for path in paths:
        with replacing_text(path, packed=True) as file:
            file.write("ü\n")

    first, second = (path.read_bytes() for path in paths)
    assert "ü\n".encode() == gzip.decompress(first)
    assert first == second
