"""`scripts/test` runs every test in exactly one group and reports every failure."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import eventually
from tests.pages import ROOT

_WITHIN_S = 30.0
_SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]
_MARKS = [line.partition(":")[0] for line in _SETTINGS["ini_options"]["markers"]]
_IN_PLACE_OF_PYTEST = """
import json, os, signal, sys

group = sys.argv[-1]
signal.alarm(60)  # it ends then, though nobody should end it

def note(what):
    with open("log", "a") as log:
        log.write(json.dumps([what, sys.argv[1:]]) + "\\n")

try:
    note("begun")
    print("output of", group)
    if group == os.environ.get("WAITS"):
        open("gate").read()
    if group == os.environ.get("OPENS"):
        open("gate", "w").close()
    if group in os.environ.get("ENDLESS", "").split(";"):
        signal.pause()
except KeyboardInterrupt:
    note("interrupted")
    sys.exit(2)
note("ended")
sys.exit(group == os.environ.get("FAILS"))
"""


class Script:
    """`scripts/test` in a temporary directory with a fake pytest that records its arguments."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        for name in ("scripts", ".venv/bin"):
            (directory / name).mkdir(parents=True)
        shutil.copy(ROOT / "scripts" / "test", directory / "scripts")
        (directory / "in_place_of_pytest.py").write_text(_IN_PLACE_OF_PYTEST, encoding="utf-8")
        python = f'exec "{sys.executable}" -I -S in_place_of_pytest.py "$@"'
        for name, text in (("scripts/setup", ""), (".venv/bin/python", python)):
            (directory / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
            (directory / name).chmod(0o755)
        (directory / "log").touch()
        os.mkfifo(directory / "gate")

    @contextmanager
    def started(self, *arguments: str, **settings: str) -> Iterator["subprocess.Popen[str]"]:
        """Run the script during a `with` block.

        The arguments name groups that fail, wait or never end.
        """
        # The test process may ignore SIGINT, which child processes inherit.
        command = ["env", "--default-signal=INT", "scripts/test", *arguments]
        with subprocess.Popen(
            command,
            cwd=self._directory,
            env=os.environ | settings,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            except BaseException:
                process.terminate()
                raise

    def run(self, *arguments: str, **settings: str) -> tuple[int, str]:
        with self.started(*arguments, **settings) as process:
            output, _ = process.communicate(timeout=_WITHIN_S)
        return process.returncode, output

    def recorded_calls(self, what: str) -> list[list[str]]:
        """Return the arguments of each logged pytest call that started or ended, in order."""
        lines = (self._directory / "log").read_text(encoding="utf-8").splitlines()
        notes: list[Any] = [json.loads(line) for line in lines]
        return [arguments for noted, arguments in notes if noted == what]

    def groups_with(self, what: str) -> list[str]:
        return [arguments[-1] for arguments in self.recorded_calls(what)]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path / "repository")


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    script = Script(tmp_path_factory.mktemp("groups") / "repository")
    script.run()
    return script.groups_with("begun")


def has_tests_with(group: str, marks: set[str]) -> bool:
    return bool(eval(group, {mark: mark in marks for mark in _MARKS}))


def group_of(groups: list[str], *marks: str) -> str:
    (group,) = (group for group in groups if has_tests_with(group, {*marks}))
    return group


def test_every_short_test_is_in_exactly_one_group(groups: list[str]) -> None:
    """No test may be lost between two groups or run twice."""
    combinations = [
        {*marks}
        for number in range(len(_MARKS) + 1)
        for marks in itertools.combinations(_MARKS, number)
    ]
    counts = {
        ("long" in marks, sum(has_tests_with(group, marks) for group in groups))
        for marks in combinations
    }

    assert 2 ** len(_MARKS) == len(combinations)
    assert {(False, 1), (True, 0)} == counts


def test_tests_with_a_cluster_run_beside_and_after_the_engines(
    script: Script, groups: list[str]
) -> None:
    """On two cores, three groups at a time starve, and a single one leaves a core idle.

    The waiting group would wait forever if the other one did not start meanwhile.
    """
    clusters, engines = group_of(groups, "ray"), group_of(groups, "vllm")
    after = group_of(groups, "ray", "after_engines")
    status, output = script.run(WAITS=clusters, OPENS=after)
    ended = script.groups_with("ended")

    assert 0 == status
    assert ended.index(engines) < ended.index(after)
    assert 4 == len({*ended})
    assert [f"output of {group}" for group in (group_of(groups), clusters, engines, after)] == (
        output.splitlines()
    )


@pytest.mark.parametrize("marks", [(), ("redis",), ("vllm",), ("ray", "after_engines")])
def test_failing_test_group_fails_the_script_after_all_groups(
    script: Script, groups: list[str], marks: tuple[str, ...]
) -> None:
    status, output = script.run(FAILS=group_of(groups, *marks))

    assert 1 == status
    assert sorted(groups) == sorted(script.groups_with("ended"))
    assert sorted(f"output of {group}" for group in groups) == sorted(output.splitlines())


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
async def test_interrupting_the_test_script_ends_all_groups(
    script: Script, groups: list[str], sent: signal.Signals
) -> None:
    """An interrupt lets pytest end its child processes, which a kill would prevent."""
    running = {group_of(groups, "ray"), group_of(groups, "vllm")}
    with script.started(ENDLESS=";".join(running)) as process:
        await eventually(lambda: running < {*script.groups_with("begun")}, "both run", _WITHIN_S)
        process.send_signal(sent)
        output, _ = process.communicate(timeout=_WITHIN_S)

    assert process.returncode != 0
    assert running == {*script.groups_with("interrupted")}
    assert group_of(groups, "ray", "after_engines") not in script.groups_with("begun")
    assert all(f"output of {group}\n" in output for group in running)


def test_long_tests_run_in_one_process(script: Script) -> None:
    """The process gets the other pytest arguments, and the script has its exit status."""
    status, _ = script.run("--long", "-k", "pi", FAILS="long")

    assert 1 == status
    assert [["-m", "pytest", "-k", "pi", "-m", "long"]] == script.recorded_calls("ended")


def test_arguments_are_passed_to_pytest(script: Script) -> None:
    """All arguments go to one pytest call, whose exit status is the script's."""
    status, _ = script.run("-q", "tests/unit", FAILS="tests/unit")

    assert 1 == status
    assert [["-m", "pytest", "-q", "tests/unit"]] == script.recorded_calls("ended")
