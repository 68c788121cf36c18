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


def create_numbered_key(number: int) -> NewKey:
    return create_key(tenant="acme", now=NOW, random_bytes=lambda count: bytes([number] * count))


def write_keys_at(path: Path, *keys: NewKey, at: int) -> None:
    path.write_text(write_records([one.record for one in keys]))
    set_modification_time(path, at)


def set_modification_time(path: Path, at: int) -> None:
    os.utime(path, ns=(at, at))


def list_key_ids(file: KeyFile) -> list[str]:
    return [record.key_id for record in file.table.records]


ONE, TWO = create_numbered_key(1), create_numbered_key(2)
IDS = [ONE.record.key_id, TWO.record.key_id]


@pytest.fixture
def key_path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    write_keys_at(path, ONE, at=1)
    return path


def test_changed_key_file_is_read_again(key_path: Path) -> None:
    """A new key is valid without a restart; an unchanged file costs one `stat` call."""
    file = KeyFile(key_path)

    assert (IDS[:1], False) == (list_key_ids(file), file.refresh())
    write_keys_at(key_path, ONE, TWO, at=1)  # another size
    assert (True, IDS) == (file.refresh(), list_key_ids(file))
    write_keys_at(key_path, ONE, at=1)
    assert (True, IDS[:1]) == (file.refresh(), list_key_ids(file))
    write_keys_at(key_path, TWO, at=2)  # another time
    assert (True, IDS[1:]) == (file.refresh(), list_key_ids(file))


def test_replaced_key_file_of_the_same_time_and_size_is_read_again(key_path: Path) -> None:
    file = KeyFile(key_path)
    other = key_path.with_name("other")
    write_keys_at(other, TWO, at=1)
    other.replace(key_path)

    assert (True, IDS[1:]) == (file.refresh(), list_key_ids(file))


def test_changed_kubernetes_secret_is_read_again(tmp_path: Path) -> None:
    """Kubernetes writes a mounted secret to a new directory and replaces the symlink to it."""
    for name, one in (("..1", ONE), ("..2", TWO)):
        (tmp_path / name).mkdir()
        write_keys_at(tmp_path / name / "keys.yaml", one, at=1)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "keys.yaml").symlink_to("..data/keys.yaml")
    file = KeyFile(tmp_path / "keys.yaml")

    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").replace(tmp_path / "..data")

    assert (True, IDS[1:]) == (file.refresh(), list_key_ids(file))


def test_invalid_key_file_keeps_the_last_keys_and_is_logged_once(key_path: Path) -> None:
    """A typing error in the key file must neither lock out all callers nor fill the log."""
    told: list[str] = []
    file = KeyFile(key_path, told.append)
    for at in (2, 3):
        key_path.write_text("keys: {}")
        set_modification_time(key_path, at)
        assert [False] * 3 == [file.refresh() for _ in range(3)]
    wrong = f"{key_path}: keys is a mapping: a list is required"

    assert [wrong] * 2 == told
    assert (IDS[:1], wrong) == (list_key_ids(file), file.trouble)
    write_keys_at(key_path, TWO, at=4)
    assert (True, IDS[1:], None) == (file.refresh(), list_key_ids(file), file.trouble)


def test_missing_key_file_keeps_the_last_keys_and_is_logged_each_time(key_path: Path) -> None:
    told: list[str] = []
    file = KeyFile(key_path, told.append)
    away = key_path.with_name("away")
    for _ in range(2):
        key_path.rename(away)
        assert [False] * 3 == [file.refresh() for _ in range(3)]
        assert (IDS[:1], told[-1]) == (list_key_ids(file), file.trouble)
        away.rename(key_path)
        assert (False, None) == (file.refresh(), file.trouble)

    assert [f"{key_path}: cannot be read: No such file or directory"] * 2 == told


def test_missing_key_file_does_not_repeat_its_earlier_logged_error(
    key_path: Path,
) -> None:
    told: list[str] = []
    file = KeyFile(key_path, told.append)
    key_path.write_text("keys: {}")
    file.refresh()
    away = key_path.with_name("away")
    key_path.rename(away)
    file.refresh()
    away.rename(key_path)
    file.refresh()

    assert 2 == len(told)
    assert told[0] == file.trouble


@pytest.mark.parametrize("kind", ["missing", "directory", "pipe", "empty", "binary", "long"])
def test_first_read_fails_without_a_valid_key_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without keys the service would refuse every caller, so its start fails."""
    path = tmp_path / "keys.yaml"
    monkeypatch.setattr(key_file, "MOST_BYTES", 1_000)
    match kind:
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)  # Reading must not block on a FIFO without a writer.
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
def test_errors_of_a_key_file_show_no_key(key_path: Path, content: str) -> None:
    told: list[str] = []
    file = KeyFile(key_path, told.append)
    key_path.write_text(content)
    file.refresh()

    assert 1 == len(told)
    assert ONE.secret not in f"{told} {file.trouble} {file!r}"


# --- changes


def test_added_key_is_written_last_with_an_unused_id(key_path: Path) -> None:
    seen: list[Collection[str]] = []

    def create_unused_key(taken: Collection[str]) -> NewKey:
        seen.append(taken)
        return TWO

    new = add_key(key_path, create_unused_key)

    assert TWO == new
    assert [{IDS[0]}] == seen
    assert (ONE.record, TWO.record) == read_key_file(key_path)


def test_new_key_file_is_private_and_an_existing_file_keeps_its_mode(key_path: Path) -> None:
    """Digests of keys give no access, but the names of keys and tenants are private."""
    new = key_path.with_name("new.yaml")
    add_key(new, lambda _: ONE)
    key_path.chmod(0o640)
    add_key(key_path, lambda _: TWO)

    assert [0o600, 0o640] == [one.stat().st_mode & 0o777 for one in (new, key_path)]


def test_symlink_to_a_key_file_stays_a_symlink(key_path: Path) -> None:
    link = key_path.with_name("link")
    link.symlink_to(key_path.name)
    add_key(link, lambda _: TWO)

    assert link.is_symlink()
    assert (ONE.record, TWO.record) == read_key_file(key_path)


def test_removed_key_is_absent_from_the_file(key_path: Path) -> None:
    inode = key_path.stat().st_ino

    assert remove_key(key_path, IDS[1]) is None
    assert inode == key_path.stat().st_ino
    assert ONE.record == remove_key(key_path, IDS[0])
    assert () == read_key_file(key_path)


def test_invalid_key_file_is_not_overwritten(key_path: Path) -> None:
    """Rewriting an invalid key file would lose its other content."""
    key_path.write_text("keys: {}")
    with pytest.raises(ConfigError, match="a list is required"):
        add_key(key_path, lambda _: ONE)
    with pytest.raises(ConfigError, match="a list is required"):
        remove_key(key_path, IDS[0])

    assert "keys: {}" == key_path.read_text()
    assert ["keys.yaml"] == os.listdir(key_path.parent)


def test_missing_directory_of_a_key_file_is_reported(tmp_path: Path) -> None:
    """A typing error in the path must not create directories."""
    with pytest.raises(ConfigError, match=r"cannot be written: No such file or directory"):
        add_key(tmp_path / "no" / "keys.yaml", lambda _: ONE)


def test_two_concurrent_changes_of_a_key_file_are_both_kept(key_path: Path) -> None:
    """The second change waits for the first change and reads its result."""
    order: list[str] = []

    def create_second_key(taken: Collection[str]) -> NewKey:
        order.append(f"second of {len(taken) + 1}")
        return create_numbered_key(3)

    def create_first_key(taken: Collection[str]) -> NewKey:
        thread.start()  # Wait for the lock of the key file until the first write ends.
        order.append(f"first of {len(taken) + 1}")
        return TWO

    thread = threading.Thread(target=add_key, args=(key_path, create_second_key))
    add_key(key_path, create_first_key)
    thread.join()

    assert ["first of 2", "second of 3"] == order
    assert [*IDS, create_numbered_key(3).record.key_id] == [
        record.key_id for record in read_key_file(key_path)
    ]
