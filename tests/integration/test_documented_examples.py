"""The documentation's examples, unchanged, run against an application on fake engines."""

import asyncio
import json
import re
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from ray import serve

from tests.harness.service import MODEL, Service
from tests.pages import ROOT, examples
from tests.unit.k8s.cluster import shell_blocks

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

URL, SERVED_MODEL, NAME = "http://127.0.0.1:8000", '"tiny-llama"', '"justitia"'
"""Service URL, model and application name on the pages; the test replaces them by its own."""
FIRST_HOUR = ROOT / "deployments" / "first-hour.md"
_COMMAND = re.compile(r"^justitia (\w+)", re.MULTILINE)
_APPLICATION, _TENANT = (
    re.compile(rf'"X-Justitia-{name}": "(.+?)"') for name in ("Application", "Tenant")
)


def examples_of_kind(kind: str) -> list[str]:
    found = [text for how, text in examples() if how == kind]
    assert found
    return found


def adapted_to_service(text: str, service: Service) -> str:
    assert URL in text or NAME in text
    return (
        text.replace(URL, service.url)
        .replace(SERVED_MODEL, f'"{MODEL}"')
        .replace(NAME, f'"{service.name}"')
    )


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def ended(text: str, service: Service) -> AsyncIterator[None]:
    """Close the applications that an example leaves open; they would wait for ten minutes."""
    yield
    async with service.http() as http:
        for name, tenant in zip(_APPLICATION.findall(text), _TENANT.findall(text), strict=True):
            headers = {"x-justitia-tenant": tenant}
            await http.post(f"/v1/applications/{name}/close", headers=headers)
    await service.until_idle()


async def run_command(*command: str) -> str:
    """Run a command and return its output; a failing test shows the error output."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, said = await process.communicate()
    assert 0 == process.returncode, said.decode()
    return out.decode()


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
@pytest.mark.parametrize("text", examples_of_kind("sh"))
async def test_documented_shell_example_is_answered(text: str, service: Service) -> None:
    printed = await run_command("bash", "-ec", adapted_to_service(text, service))
    decoder, answers, rest = json.JSONDecoder(), [], printed.strip()
    while rest:
        answer, end = decoder.raw_decode(rest)
        answers.append(answer)
        rest = rest[end:].strip()

    assert 16 == answers[0]["usage"]["completion_tokens"]
    assert {"application_id": "report-17", "closed": True} == answers[1]


@pytest.mark.parametrize("text", examples_of_kind("python"), ids=lambda text: text.splitlines()[0])
async def test_documented_python_example_prints_an_answer(text: str, service: Service) -> None:
    assert (await run_command(sys.executable, "-c", adapted_to_service(text, service))).strip()


@pytest.mark.parametrize("text", examples_of_kind("agent"))
async def test_example_agent_in_a_serve_deployment_answers(text: str, service: Service) -> None:
    names: dict[str, Any] = {"__name__": "readme_example"}
    exec(compile(adapted_to_service(text, service), "README.md", "exec"), names)
    agent = names["agent"]
    handle = await asyncio.to_thread(serve.run, agent, name="readme", route_prefix=None)
    try:
        answer = await handle.remote("How are you?")
    finally:
        await asyncio.to_thread(serve.delete, "readme")

    assert 32 == len(answer.split())


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
@pytest.mark.parametrize(
    "text", ["\n".join(shell_blocks(FIRST_HOUR, "service"))], ids=["first-hour"]
)
async def test_commands_of_the_first_hour_page_are_answered(
    text: str, service: Service, tmp_path: Path
) -> None:
    """The tested service requires no keys, so the page's keys are sent but not checked."""
    for name in ("ops.key", "team-a.key"):
        (tmp_path / name).write_text("jk-example")
    script = _COMMAND.sub(rf"{Path(sys.executable).parent}/justitia \1 --url {service.url}", text)
    script = script.replace('"Qwen/Qwen3-4B-Instruct-2507"', f'"{MODEL}"').replace(URL, service.url)

    printed = await run_command("bash", "-ec", f"cd {tmp_path}\n{script}")

    assert "policy" in printed
    assert "nothing wrong" in printed
    assert '"completion_tokens":16' in printed.replace(" ", "")
    assert '{"application_id":"report-17","closed":true}' in printed.replace(" ", "")
