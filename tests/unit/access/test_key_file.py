"""File of API keys: reloaded on change, kept on error, written by one process at a time."""

import os
import threading
from collections.abc import Collection
from pathlib import Path

import pytest

from justitia_ray.access import key_file
from justitia_ray.access.key_file import KeyFile, add_key, read_key_file, remove_key
from justitia_ray.access.keys import NewKey, create_key, write_records
from justitia_ray.errors import ConfigError

NOW = 1_800_000_000.0


def key(number: int) -> NewKey:
    return create_key(tenant="acme", now=NOW, random_bytes=lambda count: bytes([number] * count))


def put(path: Path, *keys: NewKey, at: int) -> None:
    path.write_text(write_records([one.record for one in keys]))
    touch(path, at)


def touch(path: Path, at: int) -> None:
    os.utime(path, ns=(at, at))


def ids(file: KeyFile) -> list[str]:
    return [record.key_id for record in file.table.records]


ONE, TWO = key(1), key(2)
IDS = [ONE.record.key_id, TWO.record.key_id]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    put(path, ONE, at=1)
    return path


def test_file_is_read_again_when_it_changes(path: Path) -> None:
    """A new key is valid without a restart, and an unchanged file costs one stat."""
    file = KeyFile(path)

    assert (IDS[:1], False) == (ids(file), file.refresh())
    put(path, ONE, TWO, at=1)  # another size
    assert (True, IDS) == (file.refresh(), ids(file))
    put(path, ONE, at=1)
    assert (True, IDS[:1]) == (file.refresh(), ids(file))
    put(path, TWO, at=2)  # another time
    assert (True, IDS[1:]) == (file.refresh(), ids(file))


def test_file_of_same_time_and_size_is_read_again_by_its_inode(path: Path) -> None:
    file = KeyFile(path)
    other = path.with_name("other")
    put(other, TWO, at=1)
    other.replace(path)

    assert (True, IDS[1:]) == (file.refresh(), ids(file))


def test_mounted_secret_is_read_again(tmp_path: Path) -> None:
    """Kubernetes writes a new directory and replaces the symlink to it."""
    for name, one in (("..1", ONE), ("..2", TWO)):
        (tmp_path / name).mkdir()
        put(tmp_path / name / "keys.yaml", one, at=1)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "keys.yaml").symlink_to("..data/keys.yaml")
    file = KeyFile(tmp_path / "keys.yaml")

    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").replace(tmp_path / "..data")

    assert (True, IDS[1:]) == (file.refresh(), ids(file))


def test_error_keeps_the_last_keys_and_is_logged_once_per_change(path: Path) -> None:
    """A typing error must neither lock out all callers nor fill the log."""
    told: list[str] = []
    file = KeyFile(path, told.append)
    for at in (2, 3):
        path.write_text("keys: {}")
        touch(path, at)
        assert [False] * 3 == [file.refresh() for _ in range(3)]
    wrong = f"{path}: keys is a mapping: a list is required"

    assert [wrong] * 2 == told
    assert (IDS[:1], wrong) == (ids(file), file.trouble)
    put(path, TWO, at=4)
    assert (True, IDS[1:], None) == (file.refresh(), ids(file), file.trouble)


def test_missing_file_keeps_the_last_keys_and_is_logged_each_time(path: Path) -> None:
    told: list[str] = []
    file = KeyFile(path, told.append)
    away = path.with_name("away")
    for _ in range(2):
        path.rename(away)
        assert [False] * 3 == [file.refresh() for _ in range(3)]
        assert (IDS[:1], told[-1]) == (ids(file), file.trouble)
        away.rename(path)
        assert (False, None) == (file.refresh(), file.trouble)

    assert [f"{path}: cannot be read: No such file or directory"] * 2 == told


def test_mistake_is_remembered_while_the_file_is_away(path: Path) -> None:
    told: list[str] = []
    file = KeyFile(path, told.append)
    path.write_text("keys: {}")
    file.refresh()
    away = path.with_name("away")
    path.rename(away)
    file.refresh()
    away.rename(path)
    file.refresh()

    assert 2 == len(told)
    assert told[0] == file.trouble


@pytest.mark.parametrize("kind", ["missing", "directory", "pipe", "empty", "binary", "long"])
def test_first_read_needs_a_good_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without keys the service would refuse every caller, so it fails at its start."""
    path = tmp_path / "keys.yaml"
    monkeypatch.setattr(key_file, "MOST_BYTES", 1_000)
    match kind:
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)  # a FIFO without a writer must not block the read
        case "empty":
            path.touch()
        case "binary":
            path.write_bytes(b"\xff")
        case "long":
            path.write_bytes(b"#" * 1_001)
    said = {
        "missing": "cannot be read: No such file or directory",
        "directory": "cannot be read: Is a directory",
        "pipe": "is no regular file",
        "empty": "is empty: a mapping with `keys`, a list, is required",
        "binary": "is not UTF-8 text",
        "long": "has more than 1,000 bytes, the most that is read",
    }
    with pytest.raises(ConfigError) as refused:
        KeyFile(path)

    assert f"{path}: {said[kind]}" == str(refused.value)


@pytest.mark.parametrize("content", [ONE.secret, f"keys: [{ONE.secret}]", f"keys: *{ONE.secret}"])
def test_trouble_shows_no_key(path: Path, content: str) -> None:
    told: list[str] = []
    file = KeyFile(path, told.append)
    path.write_text(content)
    file.refresh()

    assert 1 == len(told)
    assert ONE.secret not in f"{told} {file.trouble} {file!r}"


# --- changes


def test_added_key_is_last_and_has_an_unused_id(path: Path) -> None:
    seen: list[Collection[str]] = []

    def make(taken: Collection[str]) -> NewKey:
        seen.append(taken)
        return TWO

    new = add_key(path, make)

    assert TWO == new
    assert [{IDS[0]}] == seen
    assert (ONE.record, TWO.record) == read_key_file(path)


def test_new_file_is_private_and_an_old_one_keeps_its_mode(path: Path) -> None:
    """Digests give no access, but names and tenants are private."""
    new = path.with_name("new.yaml")
    add_key(new, lambda _: ONE)
    path.chmod(0o640)
    add_key(path, lambda _: TWO)

    assert [0o600, 0o640] == [one.stat().st_mode & 0o777 for one in (new, path)]


def test_symlink_to_a_file_stays(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path.name)
    add_key(link, lambda _: TWO)

    assert link.is_symlink()
    assert (ONE.record, TWO.record) == read_key_file(path)


def test_removed_key_is_gone(path: Path) -> None:
    inode = path.stat().st_ino

    assert remove_key(path, IDS[1]) is None
    assert inode == path.stat().st_ino
    assert ONE.record == remove_key(path, IDS[0])
    assert () == read_key_file(path)


def test_file_with_a_mistake_is_not_written_over(path: Path) -> None:
    """A rewrite would lose the other content of the invalid file."""
    path.write_text("keys: {}")
    with pytest.raises(ConfigError, match="a list is required"):
        add_key(path, lambda _: ONE)
    with pytest.raises(ConfigError, match="a list is required"):
        remove_key(path, IDS[0])

    assert "keys: {}" == path.read_text()
    assert ["keys.yaml"] == os.listdir(path.parent)


def test_directory_that_is_missing_is_a_sentence(tmp_path: Path) -> None:
    """A typing error in the path must not create directories."""
    with pytest.raises(ConfigError, match=r"cannot be written: No such file or directory"):
        add_key(tmp_path / "no" / "keys.yaml", lambda _: ONE)


def test_two_changes_at_once_lose_nothing(path: Path) -> None:
    """The second change waits for the first one and reads its result."""
    order: list[str] = []

    def second(taken: Collection[str]) -> NewKey:
        order.append(f"second of {len(taken) + 1}")
        return key(3)

    def first(taken: Collection[str]) -> NewKey:
        thread.start()  # the thread tries to lock the file, which is locked until this write ends
        order.append(f"first of {len(taken) + 1}")
        return TWO

    thread = threading.Thread(target=add_key, args=(path, second))
    add_key(path, first)
    thread.join()

    assert ["first of 2", "second of 3"] == order
    assert [*IDS, key(3).record.key_id] == [record.key_id for record in read_key_file(path)]
