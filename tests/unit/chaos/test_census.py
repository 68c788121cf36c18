"""A leak of anything is told, and what Ray keeps by itself is not."""

from dataclasses import replace
from typing import Any

import pytest

from justitia_ray.chaos.census import (
    FILES_TOLERANCE,
    IDLE_WORKER,
    IDLE_WORKERS_TOLERANCE,
    Census,
    leaks,
)

BEFORE = Census(
    processes={"replica": 3, IDLE_WORKER: 2},
    files={"replica": 90, IDLE_WORKER: 40},
    actors={"SERVE_REPLICA::a#Replica": 3},
    applications=0,
    waiting=0,
    in_flight=0,
    busy_kv_tokens=0,
    tickets=0,
    stored=(),
)


def test_same_again_leaks_nothing() -> None:
    """Fewer is no leak either."""
    assert [] == leaks(BEFORE, BEFORE)
    assert [] == leaks(BEFORE, replace(BEFORE, processes={"replica": 2}))


@pytest.mark.parametrize(
    "name", ["applications", "waiting", "in_flight", "busy_kv_tokens", "tickets"]
)
def test_anything_left_is_a_leak(name: str) -> None:
    """With nothing to do, there is none of it."""
    after: dict[str, Any] = {name: 2}

    assert [f"{name}: 2 in place of 0"] == leaks(BEFORE, replace(BEFORE, **after))


def test_application_left_in_redis_is_named() -> None:
    """One that ended is to be forgotten there too."""
    after = replace(BEFORE, stored=("a", "b"))

    assert ["stored: a, b in place of none"] == leaks(BEFORE, after)


def test_process_or_actor_too_many_is_a_leak() -> None:
    """One that was killed is replaced by one, not by two."""
    after = replace(
        BEFORE,
        processes={"replica": 4, "VLLM::Worker": 1},
        actors={"SERVE_REPLICA::a#Replica": 4},
    )

    assert [
        "processes of VLLM::Worker: 1 in place of 0",
        "processes of replica: 4 in place of 3",
        "actors of SERVE_REPLICA::a#Replica: 4 in place of 3",
    ] == leaks(BEFORE, after)


def test_files_and_idle_workers_have_their_tolerance_and_no_more() -> None:
    """A leak of a file for each call is hundreds."""
    allowed = replace(
        BEFORE,
        files={"replica": 90 + FILES_TOLERANCE},
        processes={"replica": 3, IDLE_WORKER: 2 + IDLE_WORKERS_TOLERANCE},
    )
    beyond = replace(
        BEFORE,
        files={"replica": 91 + FILES_TOLERANCE},
        processes={"replica": 3, IDLE_WORKER: 3 + IDLE_WORKERS_TOLERANCE},
    )

    assert [] == leaks(BEFORE, allowed)
    assert 2 == len(leaks(BEFORE, beyond))
