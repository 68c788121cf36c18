"""One client on the strict template, in every test run; `test_sessions` has all clients."""

from pathlib import Path

import pytest

from tests.e2e.harnesses.clients import CLIENTS, CodingAgent
from tests.e2e.harnesses.conftest import GuardedService, UnknownParts
from tests.e2e.harnesses.model import STRICT
from tests.e2e.harnesses.plays import run_whole_session

pytestmark = [pytest.mark.vllm, pytest.mark.harness, pytest.mark.slow]

_SMOKE = [client for client in CLIENTS if client.program == "claude"]
"""Name of the coding harness that the smoke test runs: the one with the most users."""


@pytest.mark.parametrize("client", _SMOKE, ids=str)
async def test_session_is_one_application_even_after_a_resume(
    strict: GuardedService, client: CodingAgent, tmp_path: Path, note_sent: UnknownParts
) -> None:
    await run_whole_session(strict, client, STRICT, tmp_path, note_sent, agents=False)
