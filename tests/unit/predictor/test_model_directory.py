"""Models in a directory: its layout, which other tools use, and errors of damaged files."""

from pathlib import Path

import pytest

from justitia_ray.errors import ConfigError, StoreError
from justitia_ray.predictor.model_directory import ModelDirectory


@pytest.fixture
def new_directory(tmp_path: Path) -> ModelDirectory:
    return ModelDirectory(tmp_path / "models")


def test_newly_published_model_serves(new_directory: ModelDirectory) -> None:
    """The simulator and the service read the models that `train` publishes."""
    assert (None, ()) == (new_directory.active("EV"), new_directory.index("EV").versions)
    assert 1 == new_directory.publish("EV", b"one", {"kind": "mlp"})
    files = sorted(str(p.relative_to(new_directory.path)) for p in new_directory.path.rglob("*.*"))
    assert 2 == new_directory.publish("EV", b"two", {"kind": "ridge"})

    assert ["EV/000001.model", "EV/active.json"] == files
    assert (2, b"two") == new_directory.active("EV")
    assert ["mlp", "ridge"] == [v.record["kind"] for v in new_directory.index("EV").versions]


def test_old_model_files_are_deleted(new_directory: ModelDirectory) -> None:
    """A directory that receives a model every night must not grow."""
    for number in range(7):
        new_directory.publish("EV", b"%d" % number, {})

    files = sorted(p.name for p in (new_directory.path / "EV").glob("*.model"))
    assert [f"00000{n}.model" for n in (3, 4, 5, 6, 7)] == files


@pytest.mark.parametrize("name", ["..", ".", ".hidden", "a.b", "-x"])
def test_class_names_cannot_leave_the_model_directory(
    new_directory: ModelDirectory, name: str
) -> None:
    """A caller may name a class `..`, which must not lead to another directory."""
    new_directory.publish(name, b"one", {})

    assert [name] == new_directory.classes()
    assert (1, b"one") == new_directory.active(name)
    assert [new_directory.path] == list(new_directory.path.parent.iterdir())


def test_rollback_serves_the_previous_model_until_release(new_directory: ModelDirectory) -> None:
    new_directory.publish("EV", b"one", {})
    new_directory.publish("EV", b"two", {})

    def roll_back(version: int | None = None, *, release: bool = False) -> None:
        index = new_directory.index("EV").after_rollback(version, release=release)
        new_directory.save_index("EV", index)

    roll_back()
    assert (1, b"one") == new_directory.active("EV")
    assert new_directory.index("EV").pinned
    roll_back(2)
    roll_back(release=True)
    assert ((2, b"two"), False) == (new_directory.active("EV"), new_directory.index("EV").pinned)
    roll_back(0)
    assert new_directory.active("EV") is None


def test_error_names_a_missing_model_directory(
    new_directory: ModelDirectory,
) -> None:
    """A mistyped --models must not be read as an empty directory."""
    with pytest.raises(ConfigError, match="models: no such directory of models"):
        new_directory.classes()
    new_directory.path.write_text("")
    with pytest.raises(ConfigError, match="models"):
        new_directory.publish("EV", b"one", {})


def test_error_of_a_damaged_model_names_the_previous_model(
    new_directory: ModelDirectory,
) -> None:
    """The error names the intact versions, of which the reader may serve one."""
    new_directory.publish("EV", b"one", {})
    new_directory.publish("EV", b"two", {})
    path = new_directory.path / "EV" / "000002.model"
    path.write_bytes(b"twx")

    with pytest.raises(StoreError, match=rf"{path}: version 2 of class EV is damaged"):
        new_directory.active("EV")
    found = [(v.number, isinstance(data, bytes)) for v, data in new_directory.candidates("EV")]
    assert [(2, False), (1, True)] == found
    path.unlink()
    with pytest.raises(StoreError, match="version 2 of class EV is missing"):
        new_directory.active("EV")


def test_error_of_a_damaged_index_names_the_file(new_directory: ModelDirectory) -> None:
    new_directory.publish("EV", b"one", {})
    path = new_directory.path / "EV" / "active.json"
    path.write_bytes(path.read_bytes().replace(b"false", b"true", 1))

    with pytest.raises(StoreError, match=rf"{path}: sha256 is another"):
        new_directory.active("EV")


def test_invalid_class_name_is_refused(new_directory: ModelDirectory) -> None:
    """A class name with a slash would lead outside the directory."""
    with pytest.raises(ConfigError, match=r"application_class is '\.\./x'"):
        new_directory.publish("../x", b"one", {})
