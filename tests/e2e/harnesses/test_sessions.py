"""Each client, unchanged, plays a session: one application of its class, no turn too many.

Every line that a client is set up with is one of `deployments/harnesses.md`.
"""

from pathlib import Path

import pytest

from tests.e2e.harnesses.clients import CLIENTS, Client
from tests.e2e.harnesses.conftest import Guarded, Noted
from tests.e2e.harnesses.model import LENIENT, STRICT
from tests.e2e.harnesses.plays import check_application, play
from tests.e2e.harnesses.session import session

pytestmark = [
    pytest.mark.long,
    pytest.mark.vllm,
    pytest.mark.harness,
    pytest.mark.parametrize("client", CLIENTS, ids=str),
]


@pytest.mark.parametrize("model", [LENIENT, STRICT])
async def test_session_is_one_application_from_the_first_call_to_the_resume(
    guarded: Guarded, client: Client, model: str, tmp_path: Path, note_sent: Noted
) -> None:
    tenant = f"{client}-{model}"
    key = guarded.secrets[tenant]
    async with session(client, guarded.url, tmp_path, model=model, key=key) as played:
        await play(played)
        note_sent(client, played.recorder.exchanges)
        await check_application(played, guarded, tenant)
