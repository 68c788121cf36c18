"""Each unmodified client runs a session: one application of its class, without extra turns.

All settings of the clients are from `deployments/harnesses.md`.
"""

from pathlib import Path

import pytest

from tests.e2e.harnesses.clients import CLIENTS, VARIANTS, CodingAgent
from tests.e2e.harnesses.conftest import GuardedService, UnknownParts
from tests.e2e.harnesses.model import LENIENT, STRICT
from tests.e2e.harnesses.plays import run_whole_session

pytestmark = [pytest.mark.long, pytest.mark.vllm, pytest.mark.harness]


@pytest.mark.parametrize("model", [LENIENT, STRICT])
@pytest.mark.parametrize("client", CLIENTS, ids=str)
async def test_session_is_one_application_even_after_a_resume(
    guarded: GuardedService,
    client: CodingAgent,
    model: str,
    tmp_path: Path,
    note_sent: UnknownParts,
) -> None:
    await run_whole_session(guarded, client, model, tmp_path, note_sent)


@pytest.mark.parametrize("client", VARIANTS, ids=str)
async def test_session_is_one_application_over_any_api_and_client_name(
    guarded: GuardedService, client: CodingAgent, tmp_path: Path, note_sent: UnknownParts
) -> None:
    await run_whole_session(guarded, client, STRICT, tmp_path, note_sent)
