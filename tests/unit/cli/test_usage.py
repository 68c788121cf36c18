"""`justitia usage`: a table with the service's rows and their sums."""

from typing import Any

import pytest

from justitia_ray.cli import usage
from justitia_ray.cli.main import main
from justitia_ray.client.transport import HttpTransport, Response


def test_usage_rows_are_requested_and_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    async def answer_usage(
        self: Any, method: str, path: str, headers: Any, body: bytes = b""
    ) -> Response:
        asked.append(path)
        row = (
            b'{"day":"2026-11-24","tenant":"a","model":"m","applications":1,"inferences":2,'
            b'"prompt_tokens":3000,"cached_prompt_tokens":7,"output_tokens":4,"kv_token_time":5.0,'
            b'"prefill_token_time":6.0,"is_final":true}'
        )
        return Response(200, {}, b'{"object":"list","data":[' + row + b"]}")

    monkeypatch.setattr(HttpTransport, "request", answer_usage)

    assert 0 == main(["usage", "--tenant", "a/b", "--from", "2026-11-24"])
    heads, line = capsys.readouterr().out.splitlines()
    assert ["day", "tenant", "model"] == heads.split()[:3]
    assert ["2026-11-24", "a", "m", "1", "2", "3,000", "7", "4", "5", "6"] == line.split()
    assert ["/v1/usage?tenant=a%2Fb&from=2026-11-24"] == asked
    assert "day" in usage.usage_text([])
