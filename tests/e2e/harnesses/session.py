"""A client's session against the running service, with all requests and answers."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.e2e.harnesses.clients import CodingAgent
from tests.e2e.harnesses.installed import installed_package
from tests.e2e.harnesses.recorder import RecordedCall, Recorder

RUNS_WITHIN_S = 600.0


@dataclass(frozen=True, slots=True)
class ClientRun:
    """One complete run of a client's program."""

    status: int
    output: str
    errors: str

    def __str__(self) -> str:
        return f"status {self.status}\n{self.output[-2000:]}\n{self.errors[-2000:]}"


@dataclass(frozen=True, slots=True)
class ClientSession:
    """Client program with a home directory and a working directory of its own."""

    client: CodingAgent
    recorder: Recorder
    model: str
    key: str
    directory: Path
    environment: dict[str, str]

    async def run_client(self, script: str, *, resume: bool = False) -> ClientRun:
        """Run the client's program with a prompt that names a script."""
        prompt = f"Please do the work of @@{script}@@"
        command = self.client.command_line(
            installed_package(self.client.package), self.model, prompt, resume=resume
        )
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=self.directory / "work",
            env=self.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(), RUNS_WITHIN_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # programs restart themselves
            await process.wait()
        assert process.returncode is not None
        return ClientRun(process.returncode, output.decode(), errors.decode())

    @property
    def model_prefix(self) -> str:
        return self.client.asks_for.replace("MODEL", self.model)

    @property
    def calls(self) -> list[RecordedCall]:
        return self.recorder.inferences


@asynccontextmanager
async def new_session(
    client: CodingAgent,
    service: str,
    directory: Path,
    *,
    model: str,
    key: str,
    impatient: bool = False,
) -> AsyncIterator[ClientSession]:
    """Yield a session of a client that has never run before."""
    recorder = Recorder(service)
    node = installed_package("node") / "node_modules" / ".bin"
    for part in ("home", "work"):
        (directory / part).mkdir()
    (directory / "work" / "README.md").write_text("A project.\n", encoding="utf-8")
    async with recorder.recording():
        environment = client.write_files(
            directory / "home", url=recorder.url, key=key, model=model, impatient=impatient
        )
        environment["PATH"] = f"{node}:{environment['PATH']}"
        yield ClientSession(client, recorder, model, key, directory, environment)


async def application_class(service: str, key: str, application: str) -> str:
    async with httpx.AsyncClient(base_url=service) as http:
        path = f"/v1/applications/{application}"
        answer = await http.get(path, headers={"authorization": f"Bearer {key}"})
    found: str = answer.json()["application_class"]
    return found
