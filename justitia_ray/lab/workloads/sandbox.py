"""Run generated Python programs in a separate process with limits (as FacTool does).

A program gets an empty directory that is deleted afterwards, an empty environment, only the
standard library, no further processes, and limits of CPU time, memory, file size, output and wall
time. Where the kernel allows it, the program has no network, cannot outlive its run and is not root
(`ProgramRun.guards` lists what was set; containers often refuse the first two).

This protects against programs that a model writes by accident or on instruction, but is not a jail:
world-readable files of the machine can be read. Run agents that execute code in a container of
their own.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from justitia_ray.units import Seconds

_CHILD = Path(__file__).with_name("sandbox_child.py")
_CPU_EXIT_CODES = (-signal.SIGXCPU, -signal.SIGKILL, 128 + signal.SIGXCPU, 128 + signal.SIGKILL)
"""Exit codes of a program that used up its CPU time; a parent process adds 128."""
_READ_BYTES = 65_536
_LAST_OUTPUT_S: Seconds = 1.0


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits on a program that a model wrote."""

    wall_s: Seconds = 30.0
    """Seconds after which a waiting program is killed; `cpu_s` limits computing programs. The time
    is long because a busy machine delays every program.
    """
    cpu_s: int = 5
    memory_bytes: int = 512 * 1024**2
    """Address space in bytes; an idle interpreter takes some 30 MiB."""
    file_bytes: int = 1024**2
    """Maximum size of a written file in bytes."""
    processes: int = 0
    """Maximum number of processes and threads besides the main one."""
    output_bytes: int = 64 * 1024
    """Maximum bytes of output, and of errors; a program that prints more is killed."""


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """Result of a program that ran in the sandbox."""

    outcome: Literal["passed", "failed", "timed_out", "flooded"]
    """How the program ended: `passed`, `failed`, `timed_out` or `flooded`.

    `passed` is exit status 0; `failed` another status, also for lack of memory or processes;
    `timed_out` time used up; `flooded` too much output.
    """
    output: str
    """Standard output of the program, up to the limit."""
    errors: str
    """Standard error of the program, up to the limit, with the traceback of a failure."""
    guards: frozenset[str]
    """Protections that could be set: `network`, `leftovers`, `user`.

    `network`: the program had none; `leftovers`: no process that it started is alive; `user`: the
    program was not root.
    """


async def run_python(program: str, limits: SandboxLimits | None = None) -> ProgramRun:
    """Run a Python program in the sandbox; an error of the program is part of the result.

    The event loop is not blocked. If the caller is cancelled, the program is killed.

    Raises:
        OSError: If no process can be started.
    """
    limits = limits or SandboxLimits()
    directory = tempfile.mkdtemp(prefix="sandbox-")
    try:
        return await _run_in_directory(directory, program, limits)
    finally:
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True))


async def _run_in_directory(directory: str, program: str, limits: SandboxLimits) -> ProgramRun:
    hear, tell = os.pipe()
    try:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(_CHILD),
            json.dumps(asdict(limits)),
            str(tell),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=directory,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": directory},
            start_new_session=True,
            pass_fds=(tell,),
        )
    except BaseException:
        os.close(hear)
        raise
    finally:
        os.close(tell)
    assert child.stdout is not None
    assert child.stderr is not None
    output = _Output(child, child.stdout, limits.output_bytes)
    errors = _Output(child, child.stderr, limits.output_bytes)
    timed_out = False
    try:
        async with asyncio.timeout(limits.wall_s):
            await _write_program(child, program)
            await child.wait()
    except TimeoutError:
        timed_out = True
    finally:
        _kill_group(child)
        status = await asyncio.shield(child.wait())
        # A process that left the process group may survive and keep the pipes open.
        await asyncio.wait([output.reading, errors.reading], timeout=_LAST_OUTPUT_S)
        output.reading.cancel()
        errors.reading.cancel()
        guards = _read_guards(hear)
        os.close(hear)
    outcome: Literal["passed", "failed", "timed_out", "flooded"]
    if output.is_too_long or errors.is_too_long:
        outcome = "flooded"
    elif timed_out or status in _CPU_EXIT_CODES:
        outcome = "timed_out"
    else:
        outcome = "failed" if status else "passed"
    return ProgramRun(outcome, output.text(), errors.text(), guards)


class _Output:
    """Output of a program up to a limit, at which the program is killed."""

    def __init__(
        self, child: asyncio.subprocess.Process, stream: asyncio.StreamReader, most: int
    ) -> None:
        self._child = child
        self._stream = stream
        self._most = most
        self._kept = bytearray()
        self.is_too_long = False
        self.reading = asyncio.create_task(self._read_until_limit())

    def text(self) -> str:
        return self._kept.decode(errors="replace")

    async def _read_until_limit(self) -> None:
        while chunk := await self._stream.read(_READ_BYTES):
            room = self._most - len(self._kept)
            self._kept += chunk[:room]
            if len(chunk) > room:
                self.is_too_long = True
                _kill_group(self._child)


async def _write_program(child: asyncio.subprocess.Process, program: str) -> None:
    assert child.stdin is not None
    child.stdin.write(program.encode(errors="replace"))
    with suppress(ConnectionError):
        await child.stdin.drain()
    child.stdin.close()


def _kill_group(child: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _read_guards(pipe: int) -> frozenset[str]:
    os.set_blocking(pipe, False)
    try:
        told = os.read(pipe, 1024)
    except BlockingIOError:
        told = b""
    return frozenset(name for name, had in json.loads(told or b"{}").items() if had)


_FENCE = re.compile(r"```(?:python|py)?\s*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


def code_of(answer: str) -> str:
    """Return the code in an answer: its first fenced block, or all of an answer without one."""
    found = _FENCE.search(answer)
    return (found[1] if found else answer).strip("\n")
