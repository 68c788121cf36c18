"""What figures were taken on."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def machine(packages: Sequence[str] = ()) -> dict[str, str]:
    """Return date, processor, cores, Python, and the versions of those packages that there are."""
    about = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cpu": cpu_model(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
    }
    for package in packages:
        try:
            about[package] = version(package)
        except PackageNotFoundError:
            continue
    return about


def cpu_model() -> str:
    """Return the processor's name."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()
