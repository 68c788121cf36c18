"""Sandbox of generated programs: its limits, and the end of programs that exceed them."""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from justitia_ray.lab.workloads.sandbox import SandboxLimits, run_python
from tests.eventually import eventually

QUICK = SandboxLimits(wall_s=0.4)
SOON_S = 5.0
"""Time limit in seconds for programs that would run forever without the sandbox."""


@pytest.mark.parametrize(
    ("program", "outcome", "output", "error"),
    [
        ("import math\nprint(math.factorial(5))", "passed", "120\n", ""),
        ("print('before')\n1 / 0", "failed", "before\n", "ZeroDivisionError: division by zero"),
        ("x = bytearray(2 * 1024**3)", "failed", "", "MemoryError"),
    ],
    ids=["passes", "fails", "takes too much memory"],
)
async def test_program_is_run_and_its_output_returned(
    program: str, outcome: str, output: str, error: str
) -> None:
    """A model repairs its code by the traceback in the output."""
    run = await run_python(program)

    assert (outcome, output) == (run.outcome, run.output)
    assert error == (run.errors.splitlines() or [""])[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "import sys; sys.stdout.close()\nwhile 1: 0",
    ],
)
async def test_endless_program_is_killed_after_its_time_limit(program: str) -> None:
    """Models write endless loops, which would keep the application forever."""
    started = time.monotonic()

    run = await run_python(program, QUICK)

    assert "timed_out" == run.outcome
    assert time.monotonic() - started < SOON_S


@pytest.mark.slow
async def test_cpu_time_of_a_program_has_a_separate_limit() -> None:
    """A loop takes a CPU core from the engines, so it is killed before its wall time is over."""
    run = await run_python("while True: pass", SandboxLimits(wall_s=60.0, cpu_s=1))

    assert "timed_out" == run.outcome


@pytest.mark.slow
async def test_event_loop_continues_while_a_program_runs() -> None:
    """One agent's program must not delay the other agents of the process."""
    running = asyncio.create_task(run_python("import time; time.sleep(60)", QUICK))
    turns = 0
    while not running.done():
        await asyncio.sleep(0)
        turns += 1

    assert turns > 100


async def test_excessive_output_is_cut_and_ends_the_program() -> None:
    """Output is kept in our memory and sent to a model."""
    run = await run_python("while True: print('x' * 1000)", SandboxLimits(output_bytes=5000))

    assert ("flooded", 5000) == (run.outcome, len(run.output))


async def test_file_size_is_limited_and_the_working_directory_is_removed() -> None:
    """A full disk would stop the host."""
    program = (
        "import os\nprint(os.getcwd(), os.listdir())\nopen('kept', 'w').write('x')\n"
        "open('large', 'wb').write(bytes(10_000_000))"
    )
    run = await run_python(program)

    directory, _, listed = run.output.strip().partition(" ")
    assert "[]" == listed
    assert "File too large" in run.errors
    assert directory not in file_names(tempfile.gettempdir())


async def test_environment_is_hidden_from_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment may contain keys of services."""
    monkeypatch.setenv("SERVICE_KEY", "not-for-models")
    run = await run_python("import os; print(sorted(os.environ))")

    assert "['HOME', 'LANG', 'PATH']" == run.output.strip()


@pytest.mark.parametrize(
    ("program", "guards", "error"),
    [
        ("open('/proc/{pid}/environ').read()", {"leftovers", "user"}, "PermissionError"),
        ("import os\nwhile True: os.fork()", {"user"}, "BlockingIOError"),
        (
            "import socket; socket.create_connection(('127.0.0.1', 9), 1)",
            {"network"},
            "Network is unreachable",
        ),
    ],
    ids=["the caller's environment", "a fork bomb", "the network"],
)
async def test_namespaces_of_the_kernel_isolate_the_program(
    program: str, guards: set[str], error: str
) -> None:
    """A program must not reach the caller's keys, other processes or this host's networks."""
    run = await run_python(program.format(pid=os.getpid()), SandboxLimits(wall_s=60.0))
    if not guards <= run.guards:
        pytest.skip(f"the kernel lets us keep programs apart by {sorted(run.guards)} only")

    assert "failed" == run.outcome
    assert error in run.errors


@pytest.fixture
def shared_file() -> Iterator[Path]:
    """Return a file that every user may write to."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o777)
        file = directory / "alive"
        file.touch()
        file.chmod(0o666)
        yield file


@pytest.mark.slow
async def test_child_processes_of_a_program_end_with_it(shared_file: Path) -> None:
    """Child processes that leave their process group escape a group signal."""
    program = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        while True:\n"
        f"            open({str(shared_file)!r}, 'a').write('x'); time.sleep(0.01)\n"
        "    os._exit(0)\n"
        "time.sleep(0.2)"
    )
    run = await run_python(program, SandboxLimits(wall_s=5.0, processes=10_000))
    if "leftovers" not in run.guards:
        pytest.skip("the kernel does not let us give a program a process tree of its own")
    size = file_size(shared_file)
    await run_python("import time; time.sleep(0.1)")

    assert "passed" == run.outcome
    assert 0 < size == file_size(shared_file)


async def test_cancelled_caller_ends_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application that is cancelled leaves no process."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = count_child_processes()
    running = asyncio.create_task(run_python("import time; time.sleep(60)"))
    await eventually(lambda: count_child_processes() > before, "its program runs", 30.0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert [] == file_names(str(tmp_path))
    await eventually(lambda: count_child_processes() == before, "nothing of it runs", 30.0)


def file_size(file: Path) -> int:
    return file.stat().st_size


def file_names(directory: str) -> list[str]:
    return [str(path) for path in Path(directory).iterdir()]


def count_child_processes() -> int:
    return len(psutil.Process().children(recursive=True))
