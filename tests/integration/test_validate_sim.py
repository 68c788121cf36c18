"""`scripts/validate_sim` calibrates, replays and simulates from end to end."""

import asyncio
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from scripts import validate_sim
from tests.harness.service import Service

pytestmark = [pytest.mark.long, pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


async def test_live_and_simulated_figures_are_in_one_table(
    limited: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test uses a fake engine; the script starts a real engine."""
    loop = asyncio.get_running_loop()

    class SharedApp(nullcontext[None]):
        """The tests' application, in place of the one that the script would start."""

        values: dict[str, Any] = {"applications": [{"args": {}}]}  # noqa: RUF012
        url = limited.url

        def __init__(self, file: Path, *, num_replicas: int) -> None:
            super().__init__()
            assert (Path("deployments/local-cpu.yaml"), limited.replicas) == (file, num_replicas)

        def configure(self, **settings: Any) -> None:
            """Change the settings as `LocalApp` does."""
            limited.user_config = settings
            asyncio.run_coroutine_threadsafe(limited.deploy(), loop).result()

    monkeypatch.setattr(validate_sim, "LocalApp", SharedApp)
    arguments = ["--out", str(tmp_path), "--count", "3", "--window-s", "1"]
    assert 0 == await asyncio.to_thread(validate_sim.main, arguments)

    rows = json.loads((tmp_path / "validation.json").read_text(encoding="utf-8"))["rows"]
    assert 2 * len(validate_sim.MEASURES) == len(rows)
