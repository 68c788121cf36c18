"""Each unmodified client plays a session: one application of its class, and no extra turn.

All settings of the clients are from `deployments/harnesses.md`.
"""

from pathlib import Path

import pytest

from tests.e2e.harnesses.clients import CLIENTS, VARIANTS, Client
from tests.e2e.harnesses.conftest import Guarded, Noted
from tests.e2e.harnesses.model import LENIENT, STRICT
from tests.e2e.harnesses.plays import play_whole

pytestmark = [pytest.mark.long, pytest.mark.vllm, pytest.mark.harness]


@pytest.mark.parametrize("model", [LENIENT, STRICT])
@pytest.mark.parametrize("client", CLIENTS, ids=str)
async def test_session_is_one_application_from_the_first_call_to_the_resume(
    guarded: Guarded, client: Client, model: str, tmp_path: Path, note_sent: Noted
) -> None:
    await play_whole(guarded, client, model, tmp_path, note_sent)


@pytest.mark.parametrize("client", VARIANTS, ids=str)
async def test_session_over_another_api_or_name_is_one_application(
    guarded: Guarded, client: Client, tmp_path: Path, note_sent: Noted
) -> None:
    await play_whole(guarded, client, STRICT, tmp_path, note_sent)
