"""A Ray node that is late is killed, and another one is started.

The stand-in for the node can be made late.
"""

from typing import Any

import pytest
import ray

from tests.harness import ray_start


class LateNode:
    """Fake Ray node that starts too late a given number of times, and records killed nodes."""

    late: int
    ended: list["LateNode"]

    def __init__(self) -> None:
        type(self).late -= 1
        if type(self).late >= 0:
            raise Exception(
                "The current node timed out during startup. This could happen because …"
            )

    def kill_all_processes(self, check_alive: bool, wait: bool) -> None:
        """Record the kill; Ray's node process may be dead already."""
        assert (False, True) == (check_alive, wait)
        self.ended.append(self)


def start_with_late_nodes(monkeypatch: pytest.MonkeyPatch, late: int) -> int:
    """Start Ray with late nodes; return how many nodes were killed before the start succeeded."""
    monkeypatch.setattr(LateNode, "late", late, raising=False)
    monkeypatch.setattr(LateNode, "ended", [], raising=False)
    monkeypatch.setattr(ray_start, "Node", LateNode)

    def fake_init(**options: Any) -> None:
        assert {"num_cpus": 2} == options
        LateNode()

    monkeypatch.setattr(ray, "init", fake_init)
    ray_start.start_ray(num_cpus=2)
    return len(LateNode.ended)


def test_late_ray_node_is_ended_and_another_node_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that load at the same time occupy both cores for a minute."""
    assert 0 == start_with_late_nodes(monkeypatch, late=0)
    assert 2 == start_with_late_nodes(monkeypatch, late=2)


def test_machine_that_stays_too_slow_raises_the_error_of_ray(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number of attempts is limited, and other errors are raised at once."""
    with pytest.raises(Exception, match="timed out during startup"):
        start_with_late_nodes(monkeypatch, late=3)
    assert 2 == len(LateNode.ended)
    monkeypatch.setattr(ray_start, "_LATE", "something else")
    with pytest.raises(Exception, match="timed out during startup"):
        start_with_late_nodes(monkeypatch, late=1)
    assert not LateNode.ended
