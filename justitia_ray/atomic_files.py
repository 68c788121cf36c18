"""Atomic writing of a file.

The output goes to a temporary file in the same directory, which replaces the file at the end.
`sim.result_files.writing` does the same for a directory.
"""

import gzip
import io
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from justitia_ray.errors import ConfigError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file for writing; without an error it replaces `path` at the end.

    After an error, `path` is unchanged and no temporary file is left.

    Raises:
        ConfigError: If the file cannot be written. Every OSError inside the block becomes this
            error, so do not read files there.
    """
    scratch = path.parent / f".{path.name}.{uuid.uuid4().hex}.part"
    try:
        with scratch.open("xb") as file:
            yield file
        scratch.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            scratch.unlink()


@contextmanager
def replacing_text(path: Path, *, packed: bool = False) -> Iterator[TextIO]:
    r"""Like `replacing`, for UTF-8 text; lines end in `\n` on every system.

    Args:
        path: File to replace at the end.
        packed: Whether to gzip it. Equal texts give equal bytes, because no time is stored.

    Raises:
        ConfigError: As `replacing`.
    """
    with replacing(path) as raw:
        file = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if packed else raw
        with io.TextIOWrapper(file, encoding="utf-8", newline="\n") as text:
            yield text
