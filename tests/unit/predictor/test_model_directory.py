"""Models in a directory: its layout, which other tools use, and errors of damaged files."""

from pathlib import Path

import pytest

from justitia_ray.errors import ConfigError, StoreError
from justitia_ray.predictor.model_directory import ModelDirectory


@pytest.fixture
def directory(tmp_path: Path) -> ModelDirectory:
    """Return the path of a directory that does not exist yet."""
    return ModelDirectory(tmp_path / "models")


def test_published_model_serves(directory: ModelDirectory) -> None:
    """`train` publishes, `simulate` and the service read; users copy the files."""
    assert (None, ()) == (directory.active("EV"), directory.index("EV").versions)
    assert 1 == directory.publish("EV", b"one", {"kind": "mlp"})
    files = sorted(str(p.relative_to(directory.path)) for p in directory.path.rglob("*.*"))
    assert 2 == directory.publish("EV", b"two", {"kind": "ridge"})

    assert ["EV/000001.model", "EV/active.json"] == files
    assert (2, b"two") == directory.active("EV")
    assert ["mlp", "ridge"] == [v.record["kind"] for v in directory.index("EV").versions]


def test_old_models_are_deleted(directory: ModelDirectory) -> None:
    """A directory that is trained into every night does not grow."""
    for number in range(7):
        directory.publish("EV", b"%d" % number, {})

    files = sorted(p.name for p in (directory.path / "EV").glob("*.model"))
    assert [f"00000{n}.model" for n in (3, 4, 5, 6, 7)] == files


@pytest.mark.parametrize("name", ["..", ".", ".hidden", "a.b", "-x"])
def test_class_names_stay_inside_the_directory(directory: ModelDirectory, name: str) -> None:
    """A caller may name a class `..`."""
    directory.publish(name, b"one", {})

    assert [name] == directory.classes()
    assert (1, b"one") == directory.active(name)
    assert [directory.path] == list(directory.path.parent.iterdir())


def test_rollback_and_release(directory: ModelDirectory) -> None:
    """One command goes back, and one releases."""
    directory.publish("EV", b"one", {})
    directory.publish("EV", b"two", {})

    def roll_back(version: int | None = None, *, release: bool = False) -> None:
        index = directory.index("EV").after_rollback(version, release=release)
        directory.save_index("EV", index)

    roll_back()
    assert (1, b"one") == directory.active("EV")
    assert directory.index("EV").pinned
    roll_back(2)
    roll_back(release=True)
    assert ((2, b"two"), False) == (directory.active("EV"), directory.index("EV").pinned)
    roll_back(0)
    assert directory.active("EV") is None


def test_missing_directory_and_file_in_its_place_are_named(directory: ModelDirectory) -> None:
    """A mistyped --models must not mean no models; the error is one sentence, without traceback."""
    with pytest.raises(ConfigError, match="models: no such directory of models"):
        directory.classes()
    directory.path.write_text("")
    with pytest.raises(ConfigError, match="models"):
        directory.publish("EV", b"one", {})


def test_damaged_model_is_refused_by_name_and_the_one_before_is_good(
    directory: ModelDirectory,
) -> None:
    """The reader decides which version serves instead; the error names the intact ones."""
    directory.publish("EV", b"one", {})
    directory.publish("EV", b"two", {})
    path = directory.path / "EV" / "000002.model"
    path.write_bytes(b"twx")

    with pytest.raises(StoreError, match=rf"{path}: version 2 of class EV is damaged"):
        directory.active("EV")
    found = [(v.number, isinstance(data, bytes)) for v, data in directory.candidates("EV")]
    assert [(2, False), (1, True)] == found
    path.unlink()
    with pytest.raises(StoreError, match="version 2 of class EV is missing"):
        directory.active("EV")


def test_damaged_index_names_the_file(directory: ModelDirectory) -> None:
    """The serving version is not guessed."""
    directory.publish("EV", b"one", {})
    path = directory.path / "EV" / "active.json"
    path.write_bytes(path.read_bytes().replace(b"false", b"true", 1))

    with pytest.raises(StoreError, match=rf"{path}: sha256 is another"):
        directory.active("EV")


def test_wrong_class_name_is_refused(directory: ModelDirectory) -> None:
    """A slash would lead outside the directory."""
    with pytest.raises(ConfigError, match=r"application_class is '\.\./x'"):
        directory.publish("../x", b"one", {})
