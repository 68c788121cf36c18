"""Trained models in a directory, as `justitia predictor train` writes them.

    PATH/CLASS/000001.model  bytes of a model, in the format of `model_file`
    PATH/CLASS/active.json   the kept versions, their checksums, the serving one

The dot that starts a class name is written `%2E`. Only one process may write at a time; readers
never see a half-written file.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from justitia_ray.atomic_files import replacing
from justitia_ray.errors import ConfigError, RequestError, StoreError
from justitia_ray.predictor.class_names import check_class_name
from justitia_ray.predictor.versions import Version, VersionIndex, decode_index, encode_index

_INDEX = "active.json"
_DOT = "%2E"


class ModelDirectory:
    """Directory of models by class, with several versions of each.

    Every method raises `ConfigError` if the directory, or a file in it, cannot be read or written,
    or a class name is not valid, and `StoreError`, naming the file, if an index is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    def classes(self) -> list[str]:
        """Return the names of the classes that have models.

        Raises:
            ConfigError: If there is no such directory.
        """
        try:
            found = sorted(entry.parent.name for entry in self.path.glob(f"*/{_INDEX}"))
            if not found and not self.path.is_dir():
                raise ConfigError(f"{self.path}: no such directory of models")
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be read: {error.strerror}") from error
        return [name.replace(_DOT, ".", 1) for name in found]

    def publish(self, application_class: str, data: bytes, record: Mapping[str, Any]) -> int:
        """Write a model as the serving version and drop the oldest versions; return its number.

        Args:
            application_class: Class of the model.
            data: Bytes of the model.
            record: Record of its training; JSON.
        """
        before = self.index(application_class)
        index = before.published(data, record)
        self._write_file(self._model_path(application_class, index.active), data)
        self.save_index(application_class, index)
        for version in before.versions:
            if index.find(version.number) is None:
                self._model_path(application_class, version.number).unlink(missing_ok=True)
        return index.active

    def active(self, application_class: str) -> tuple[int, bytes] | None:
        """Return number and bytes of the version that serves; None without one.

        Raises:
            StoreError: If its file is missing or damaged; `candidates` has earlier versions.
        """
        candidates = self.index(application_class).candidates()
        if not candidates:
            return None
        return candidates[0].number, self.read(application_class, candidates[0])

    def candidates(self, application_class: str) -> Iterator[tuple[Version, bytes | StoreError]]:
        """Yield the versions that may serve, best first, each with its bytes or its error."""
        for version in self.index(application_class).candidates():
            try:
                yield version, self.read(application_class, version)
            except StoreError as error:
                yield version, error

    def read(self, application_class: str, version: Version) -> bytes:
        """Return the bytes of one version of a model.

        Raises:
            StoreError: If the file is missing or its checksum differs; the message names file and
                version.
        """
        path = self._model_path(application_class, version.number)
        where = f"{path}: version {version.number} of class {application_class}"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise StoreError(f"{where} is missing") from None
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        if not version.holds(data):
            raise StoreError(f"{where} is damaged: its checksum is another")
        return data

    def index(self, application_class: str) -> VersionIndex:
        """Return the version index of a class, empty if it has no models."""
        path = self._class_folder(application_class) / _INDEX
        try:
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return VersionIndex()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        try:
            return decode_index(data)
        except ValueError as error:
            raise StoreError(f"{path}: {error}") from error

    def save_index(self, application_class: str, index: VersionIndex) -> None:
        """Write the kept versions of a class's model, and the number of the serving version."""
        self._write_file(self._class_folder(application_class) / _INDEX, encode_index(index))

    def _model_path(self, application_class: str, number: int) -> Path:
        return self._class_folder(application_class) / f"{number:06}.model"

    def _class_folder(self, application_class: str) -> Path:
        try:
            check_class_name(application_class)
        except RequestError as error:
            raise ConfigError(str(error)) from error
        if application_class.startswith("."):
            application_class = _DOT + application_class[1:]
        return self.path / application_class

    def _write_file(self, path: Path, data: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{path.parent}: cannot be made: {error.strerror}") from error
        with replacing(path) as file:
            file.write(data)
