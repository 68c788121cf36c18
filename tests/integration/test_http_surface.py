"""What a caller over HTTP sees."""

import httpx
import pytest

from tests.integration.service import MODEL, Service

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


async def test_model_is_listed(http: httpx.AsyncClient) -> None:
    """Clients ask for the model before anything else."""
    answer = await http.get("/v1/models")

    assert 200 == answer.status_code
    assert [MODEL] == [model["id"] for model in answer.json()["data"]]


async def test_chat(http: httpx.AsyncClient, service: Service) -> None:
    """x."""
    body = {"messages": [{"role": "user", "content": "a b c"}], "max_tokens": 5}
    answer = await http.post("/v1/chat/completions", json=body)
    print(answer.text, await service.status())

    assert 200 == answer.status_code
    await service.until_idle()
