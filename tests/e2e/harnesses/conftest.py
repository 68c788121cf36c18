"""The service on scripted engines with API keys, and a report of clients' unknown input."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.harnesses.beside import side_call_times
from tests.e2e.harnesses.clients import CLIENTS, VARIANTS, CodingAgent
from tests.e2e.harnesses.installed import CACHE, installed_package
from tests.e2e.harnesses.known import unknown_parts
from tests.e2e.harnesses.model import LENIENT, STRICT, build_model
from tests.e2e.harnesses.recorder import Recorder
from tests.e2e.harnesses.scenarios import HOG, all_scripts
from tests.e2e.harnesses.script import write_scripts
from tests.e2e.harnesses.service import SPENT, ScriptedService, scripted_service
from tests.harness.key_ring import KeyRing

OPERATOR = "operator"
WAITS, DIES = "waits", "dies"
"""Suffixes of the names of two tenants: the calls of one wait long, the engine of the other dies.
"""
_NOTED = pytest.StashKey["UnknownParts"]()


@dataclass(frozen=True, slots=True)
class GuardedService:
    """Running service with API keys, and the secrets of the keys by tenant."""

    service: ScriptedService
    secrets: dict[str, str]

    @property
    def url(self) -> str:
        return self.service.url


@pytest.fixture(scope="session")
def model_directory() -> Path:
    """Directory of the scripted model, built once for each Python version."""
    directory = CACHE / f"model-{sys.version_info.major}.{sys.version_info.minor}"
    if not directory.exists():
        build_model(directory)
    return directory


def _serve_scripted(
    directory: Path, model: Path, engines: tuple[str, ...], *, haproxy: bool
) -> Iterator[GuardedService]:
    installed_package(CLIENTS[0].package)  # skips the test if npm is missing
    keys = KeyRing(directory / "keys.yaml")
    names = (LENIENT, STRICT, WAITS, DIES)
    tenants = [f"{client}-{name}" for client in (*CLIENTS, *VARIANTS) for name in names]
    for tenant in (*tenants, *(f"{SPENT}/{client}" for client in CLIENTS), HOG):
        keys.add(tenant, tenant, "infer", "own")
    keys.add(OPERATOR, None, "operate")
    keys.write()
    scripts = directory / "scripts.json"
    write_scripts(scripts, all_scripts(CLIENTS))
    with scripted_service(
        model, scripts, keys.file, dict.fromkeys(engines, 1), haproxy=haproxy
    ) as service:
        yield GuardedService(service, keys.secrets)


@pytest.fixture(scope="module", params=["haproxy", "serve"])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, model_directory: Path
) -> Iterator[GuardedService]:
    """Service with lenient and strict chat templates, once behind each kind of HTTP proxy."""
    directory = tmp_path_factory.mktemp(request.param)
    yield from _serve_scripted(
        directory, model_directory, (LENIENT, STRICT), haproxy=request.param == "haproxy"
    )


@pytest.fixture(scope="module")
def strict(
    tmp_path_factory: pytest.TempPathFactory, model_directory: Path
) -> Iterator[GuardedService]:
    yield from _serve_scripted(
        tmp_path_factory.mktemp("strict"), model_directory, (STRICT,), haproxy=True
    )


@pytest.fixture
def note_sent(pytestconfig: pytest.Config) -> "UnknownParts":
    """Function that collects unknown headers and fields of a client's calls."""
    return pytestconfig.stash.setdefault(_NOTED, UnknownParts({}, {}))


@dataclass(frozen=True, slots=True)
class UnknownParts:
    """Headers, body fields and side calls of coding agents that the project does not know yet."""

    unknown: dict[str, set[str]]
    beside: dict[str, list[str]]

    def __call__(self, client: CodingAgent, recorder: Recorder) -> None:
        found = self.unknown.setdefault(client.name, set())
        for call in recorder.exchanges:
            found |= unknown_parts(client.program, call)
        self.beside.setdefault(client.name, []).extend(side_call_times(recorder.inferences))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print unknown headers and fields: they show that a coding agent has a new release."""
    noted = config.stash.get(_NOTED, None)
    if noted is None:
        return
    for title, found in (
        ("what harnesses sent that is not known", noted.unknown),
        ("calls of harnesses beside their conversations", noted.beside),
    ):
        terminalreporter.section(title)
        for name, parts in sorted(found.items()):
            terminalreporter.write_line(f"{name}: {', '.join(sorted(parts)) or 'none'}")
