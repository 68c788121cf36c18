"""A Ray node that is late is killed, and another one is started.

The stand-in for the node can be made late.
"""

from typing import Any

import pytest
import ray

from tests.harness import ray_start


class LateNode:
    """Node that is late a given number of times; records the killed nodes."""

    late: int
    ended: list["LateNode"]

    def __init__(self) -> None:
        type(self).late -= 1
        if type(self).late >= 0:
            raise Exception(
                "The current node timed out during startup. This could happen because …"
            )

    def kill_all_processes(self, check_alive: bool, wait: bool) -> None:
        """Record the kill; the raylet may be dead, and every node must be waited for."""
        assert (False, True) == (check_alive, wait)
        self.ended.append(self)


def started(monkeypatch: pytest.MonkeyPatch, late: int) -> int:
    """Start Ray with the given number of late nodes; return the number of killed ones."""
    monkeypatch.setattr(LateNode, "late", late, raising=False)
    monkeypatch.setattr(LateNode, "ended", [], raising=False)
    monkeypatch.setattr(ray_start, "Node", LateNode)

    def init(**options: Any) -> None:
        assert {"num_cpus": 2} == options
        LateNode()

    monkeypatch.setattr(ray, "init", init)
    ray_start.start_ray(num_cpus=2)
    return len(LateNode.ended)


def test_late_node_is_ended_and_another_one_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that load beside it take both cores for a minute, and then they do not."""
    assert 0 == started(monkeypatch, late=0)
    assert 2 == started(monkeypatch, late=2)


def test_too_slow_machine_raises_the_error_of_ray(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wait is bounded, and other errors are raised at once."""
    with pytest.raises(Exception, match="timed out during startup"):
        started(monkeypatch, late=3)
    assert 2 == len(LateNode.ended)
    monkeypatch.setattr(ray_start, "_LATE", "something else")
    with pytest.raises(Exception, match="timed out during startup"):
        started(monkeypatch, late=1)
    assert not LateNode.ended
