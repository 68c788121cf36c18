"""Write the third-party modules of the console page, from pinned packages of npm.

Each file is the file of its package, but for what a browser needs to load it without a build step
and without an import map: bare names of imports become relative paths, uPlot's script gets the
export that a module needs, and links to source maps go. `modules.json` beside the modules names
package, version, the package's own hash, and the SHA-256 of each file as it was written.
"""

import argparse
import base64
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VENDOR = Path(__file__).parents[1] / "justitia_ray" / "console" / "page" / "vendor"

_PATHS = {
    "preact": "./preact.mjs",
    "preact/hooks": "./preact-hooks.mjs",
    "@preact/signals-core": "./signals-core.mjs",
}
"""Relative path of each browser module that other modules import by its bare name."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package of npm, and its files that the page uses."""

    name: str
    version: str
    integrity: str
    """SHA-512 of the package's archive, as npm publishes it."""
    files: Mapping[str, str]
    """Name of the written file, by the file's path in the npm package."""
    appended: str = ""
    """Text that is appended to each script of the package."""


PACKAGES = (
    Package(
        "preact",
        "11.2.0",
        "sha512-/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==",
        {
            "dist/preact.mjs": "preact.mjs",
            "hooks/dist/hooks.mjs": "preact-hooks.mjs",
            "LICENSE": "LICENSE.preact",
        },
    ),
    Package(
        "@preact/signals-core",
        "1.14.5",
        "sha512-vcRv7Ityz5JVmeiVqIluLFzT/PDS/AlhHUpw3/aUWqcVUs6bDGIPXE/6RSC4evBNWYvnniozg5Syfj33al3gkg==",
        {"dist/signals-core.mjs": "signals-core.mjs", "LICENSE": "LICENSE.signals-core"},
    ),
    Package(
        "@preact/signals",
        "2.11.4",
        "sha512-Rb+5RPo9gWSaHtzJeauhHxiC8KP/IF2DEPkHPEOGOnuy2wnJzRqyeLRankUCYd6ADqtxS6GnWGv6Ie343d8aYw==",
        {"dist/signals.mjs": "signals.mjs", "LICENSE": "LICENSE.signals"},
    ),
    Package(
        "htm",
        "3.1.1",
        "sha512-983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
        {"dist/htm.mjs": "htm.mjs", "LICENSE": "LICENSE.htm"},
    ),
    Package(
        "uplot",
        "1.6.32",
        "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        {
            "dist/uPlot.iife.min.js": "uplot.mjs",
            "dist/uPlot.min.css": "uplot.css",
            "LICENSE": "LICENSE.uplot",
        },
        appended="export default uPlot;\n",
    ),
)


def as_module(text: str, appended: str) -> str:
    """Return a script of an npm package as a module that a browser loads by relative paths.

    Args:
        text: The script.
        appended: Text after it.

    Raises:
        ValueError: If the script imports a module that is not written.
    """
    text = re.sub(r"\n?//# sourceMappingURL=\S+\s*$", "", text).rstrip("\n") + "\n"

    def relative_import(found: re.Match[str]) -> str:
        if found[1] not in _PATHS:
            raise ValueError(f"no module is written for the import of {found[1]!r}")
        return f'from"{_PATHS[found[1]]}"'

    return re.sub(r'\bfrom"([^"./][^"]*)"', relative_import, text) + appended


def fetch_files(package: Package) -> dict[str, str]:
    """Download an npm package, and return the texts of its files by file name.

    Raises:
        ValueError: If the archive has another hash than the pinned one.
        subprocess.CalledProcessError: If npm cannot fetch the package.
    """
    with tempfile.TemporaryDirectory() as folder:
        wanted = f"{package.name}@{package.version}"
        subprocess.run(
            ["npm", "pack", "--silent", wanted], cwd=folder, check=True, capture_output=True
        )
        (path,) = Path(folder).glob("*.tgz")
        archive = path.read_bytes()
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if integrity != package.integrity:
        raise ValueError(f"{wanted} has the hash {integrity}, not {package.integrity}")
    written = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for inside, name in package.files.items():
            member = files.extractfile(f"package/{inside}")
            assert member is not None, inside
            text = member.read().decode("utf-8")
            written[name] = as_module(text, package.appended) if name.endswith("js") else text
    return written


def main() -> int:
    """Write the console's modules, or with `--check` return 1 if they differ from the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if files differ")
    check = parser.parse_args().check
    files: dict[str, str] = {}
    table = []
    for package in PACKAGES:
        written = fetch_files(package)
        files |= written
        table.append(
            {
                "package": package.name,
                "version": package.version,
                "integrity": package.integrity,
                "sha256": {
                    name: hashlib.sha256(text.encode()).hexdigest()
                    for name, text in written.items()
                },
            }
        )
    files["modules.json"] = json.dumps(table, indent=2) + "\n"
    differ = [
        name
        for name, text in files.items()
        if not (VENDOR / name).exists() or (VENDOR / name).read_text(encoding="utf-8") != text
    ]
    if check:
        print("\n".join(f"{VENDOR / name} differs" for name in differ) or "as in the packages")
        return 1 if differ else 0
    VENDOR.mkdir(parents=True, exist_ok=True)
    for name in differ:
        (VENDOR / name).write_text(files[name], encoding="utf-8")
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
