"""Keeps unit tests unit tests, and every test off the network and out of usage statistics."""

import os
import sys
from typing import Any, NoReturn

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read when Ray is imported
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_NO_USAGE_STATS"] = "1"

_STARTS_CLUSTERS = ("ray", "vllm")


def pytest_configure(config: pytest.Config) -> None:
    """Let Serve be imported: its own use of pydantic warns."""
    config.addinivalue_line("filterwarnings", "ignore:Using extra keyword arguments on `Field`")


class ClusterInUnitTest(BaseException):
    """A test without the mark wants a Ray cluster; not an Exception, so that no product eats it."""


@pytest.fixture(autouse=True)
def _no_cluster_unless_marked(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make Ray refuse to start, also by itself at the first `.remote()`."""
    if any(request.node.get_closest_marker(mark) for mark in _STARTS_CLUSTERS):
        return
    ray, serve = sys.modules.get("ray"), sys.modules.get("ray.serve")

    def refuse(*args: Any, **options: Any) -> NoReturn:
        raise ClusterInUnitTest("mark the test `ray` or `vllm`, or do without a cluster")

    if ray is not None:
        monkeypatch.setattr(ray, "init", refuse)
    if serve is not None:
        monkeypatch.setattr(serve, "start", refuse)
        monkeypatch.setattr(serve, "run", refuse)
