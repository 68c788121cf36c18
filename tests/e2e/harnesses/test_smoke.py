"""Two clients on the strict template, in every run of the tests; `test_sessions` has all."""

from pathlib import Path

import pytest

from tests.e2e.harnesses.clients import CLIENTS, Client
from tests.e2e.harnesses.conftest import Guarded, Noted
from tests.e2e.harnesses.model import STRICT
from tests.e2e.harnesses.plays import check_application, play
from tests.e2e.harnesses.session import session

pytestmark = [pytest.mark.vllm, pytest.mark.harness, pytest.mark.slow]

_SMOKE = [client for client in CLIENTS if client.program in ("pi", "claude")]
"""The one that is quickest to install, and the one with most users."""


@pytest.mark.parametrize("client", _SMOKE, ids=str)
async def test_session_is_one_application_from_the_first_call_to_the_resume(
    strict: Guarded, client: Client, tmp_path: Path, note_sent: Noted
) -> None:
    tenant = f"{client}-{STRICT}"
    key = strict.secrets[tenant]
    async with session(client, strict.url, tmp_path, model=STRICT, key=key) as played:
        await play(played, agents=False)
        note_sent(client, played.recorder.exchanges)
        await check_application(played, strict, tenant)
