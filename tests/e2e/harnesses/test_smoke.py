"""One client on the strict template, in every test run; `test_sessions` has all clients."""

from pathlib import Path

import pytest

from tests.e2e.harnesses.clients import CLIENTS, Client
from tests.e2e.harnesses.conftest import Guarded, Noted
from tests.e2e.harnesses.model import STRICT
from tests.e2e.harnesses.plays import play_whole

pytestmark = [pytest.mark.vllm, pytest.mark.harness, pytest.mark.slow]

_SMOKE = [client for client in CLIENTS if client.program == "claude"]
"""The client with most users."""


@pytest.mark.parametrize("client", _SMOKE, ids=str)
async def test_session_is_one_application_from_the_first_call_to_the_resume(
    strict: Guarded, client: Client, tmp_path: Path, note_sent: Noted
) -> None:
    await play_whole(strict, client, STRICT, tmp_path, note_sent, agents=False)
