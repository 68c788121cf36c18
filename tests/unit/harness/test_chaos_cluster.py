"""Leaks are reported, except objects that Ray keeps by itself."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.harness.chaos.cluster import merge_values
from tests.harness.chaos.leak_check import (
    FILES_TOLERANCE,
    IDLE_WORKER,
    IDLE_WORKERS_TOLERANCE,
    ResourceCount,
    leaks,
    process_role,
)
from tests.harness.local_cluster import read_serve_config

BEFORE = ResourceCount(
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


@pytest.mark.parametrize(
    ("after", "told"),
    [
        ({}, []),
        ({"processes": {"replica": 2}}, []),  # Fewer processes than before are no leak.
        *(
            ({name: 2}, [f"{name}: 2 in place of 0"])
            for name in ("applications", "waiting", "in_flight", "busy_kv_tokens", "tickets")
        ),
        # An ended application must be removed from Redis, too.
        ({"stored": ("a", "b")}, ["stored: a, b in place of none"]),
        # A killed process is replaced by one process, not by two.
        (
            {
                "processes": {"replica": 4, "VLLM::Worker": 1},
                "actors": {"SERVE_REPLICA::a#Replica": 4},
            },
            [
                "processes of VLLM::Worker: 1 in place of 0",
                "processes of replica: 4 in place of 3",
                "actors of SERVE_REPLICA::a#Replica: 4 in place of 3",
            ],
        ),
        # A leak of one file per call makes hundreds of files.
        ({"files": {"replica": 90 + FILES_TOLERANCE}}, []),
        (
            {"files": {"replica": 91 + FILES_TOLERANCE}},
            [f"files of replica: {91 + FILES_TOLERANCE} in place of 90"],
        ),
        ({"processes": {IDLE_WORKER: 2 + IDLE_WORKERS_TOLERANCE}}, []),
        (
            {"processes": {IDLE_WORKER: 3 + IDLE_WORKERS_TOLERANCE}},
            [f"processes of {IDLE_WORKER}: {3 + IDLE_WORKERS_TOLERANCE} in place of 2"],
        ),
    ],
)
def test_leaked_resources_are_reported(after: dict[str, Any], told: list[str]) -> None:
    """After a run, an idle cluster must hold no more of any resource than before."""
    assert told == leaks(BEFORE, replace(BEFORE, **after))


@dataclass
class TitledProcess:
    """Fake process with a title, as psutil returns it."""

    title: str
    pid: int = 7

    def cmdline(self) -> list[str]:
        return [self.title]


@pytest.mark.parametrize(
    ("title", "role"),
    [
        ("ray::AccountsActor.status", "AccountsActor"),
        (
            "ray::AccountsActor" + " " * 40,
            "AccountsActor",
        ),  # Ray pads a title that replaces a longer one.
        ("ray::ServeReplica:app:Replica", "replica"),
        ("ray::IDLE", IDLE_WORKER),
    ],
)
def test_process_title_activity_does_not_change_the_process_role(title: str, role: str) -> None:
    """A role with two names would look like a new process."""
    assert role == process_role(TitledProcess(title), 1)
    assert "scheduler" == process_role(TitledProcess(title), 7)


def test_overriding_engine_arguments_keeps_other_settings_of_the_file() -> None:
    """An engine without the file's other settings would not be the deployed one."""
    file = Path("deployments/local-cpu.yaml")
    before, after = (read_serve_config(file)["applications"][0]["args"] for _ in range(2))
    merge_values(
        after, {"engine": {"vllm_args": {"max_num_seqs": 2}}, "replica": {"heartbeat_s": 2.0}}
    )

    before["engine"]["vllm_args"]["max_num_seqs"] = 2
    assert before | {"replica": {"heartbeat_s": 2.0}} == after
