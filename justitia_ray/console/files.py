"""Static files of the console's page, which contain no data."""

import gzip
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path

PAGE = Path(__file__).parent / "page"
INDEX = "index.html"

CONSOLE_HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self';"
        " img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
"""HTTP headers of the console's files: no foreign scripts, and no embedding in a frame."""

_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css"}


@dataclass(frozen=True, slots=True)
class PageFile:
    body: bytes
    compressed: bytes
    """Content of the file, compressed with gzip."""
    content_type: str
    etag: str


@cache
def page_files(folder: Path = PAGE) -> Mapping[str, PageFile]:
    """Return the console's files by their path below `/console/`; the index has the empty path."""
    found = {
        str(path.relative_to(folder)): _read_file(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return found | ({"": found[INDEX]} if INDEX in found else {})


def _read_file(path: Path) -> PageFile:
    body = path.read_bytes()
    kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "text/plain"
    charset = "; charset=utf-8" if kind.startswith("text/") else ""
    etag = f'"{blake2b(body, digest_size=16).hexdigest()}"'
    return PageFile(body, gzip.compress(body, mtime=0), kind + charset, etag)
