"""Grammars are compiled in processes that can be killed; the calls of others go on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from justitia_ray.errors import EngineError, RequestError
from justitia_ray.serve.engines.grammar_checks import GrammarChecks
from tests.eventually import eventually
from tests.unit.serve.engines.scripted_judge import scripted_judge

_MIB = 2**20


def _checks(config: str = "fine", timeout_s: float = 30.0) -> GrammarChecks:
    return GrammarChecks(scripted_judge, config, timeout_s, 200 * _MIB)


@pytest.fixture
async def checks() -> AsyncIterator[GrammarChecks]:
    """Checks with a worker of their own, which starts with the first grammar."""
    checks = _checks()
    yield checks
    checks.stop()


def _children() -> list[psutil.Process]:
    return list(psutil.Process().children(recursive=True))


async def test_grammar_comes_back_as_the_checks_leave_it_and_is_compiled_once(
    checks: GrammarChecks,
) -> None:
    first = await checks.check("a", "ok")
    again = await asyncio.gather(*(checks.check(tenant, "ok") for tenant in "ab"))

    assert first.startswith("checked ok")
    assert [first, first] == again


async def test_calls_that_wait_for_one_grammar_share_it(checks: GrammarChecks) -> None:
    both = await asyncio.gather(checks.check("a", "ok"), checks.check("b", "ok"))

    assert both[0] == both[1]


async def test_quick_processes_are_used_again(checks: GrammarChecks) -> None:
    """A fork costs more than most schemas."""
    said = [await checks.check("a", f"ok {number}") for number in range(10)]

    assert len({one.split(", ")[1] for one in said}) <= 2


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("refuse it is empty", "it is empty"),
        ("sleep 60", r"longer than 0.5 s to compile \(engine\.grammar_timeout_s\)"),
        (f"eat {400 * _MIB}", r"more than 200 MiB \(engine\.grammar_memory_bytes\)"),
        ("crash", "its compiler breaks down"),
    ],
)
async def test_what_does_not_come_through_is_refused_and_others_are_not(
    grammar: str, reason: str
) -> None:
    checks = _checks(timeout_s=0.5)
    assert (await checks.check("a", f"eat {50 * _MIB}")).startswith("checked eat")
    for _ in range(2):
        with pytest.raises(RequestError, match=reason):
            await checks.check("a", grammar)
    assert (await checks.check("a", "ok")).startswith("checked ok")
    checks.stop()


async def test_heavy_grammars_of_one_tenant_do_not_hold_up_another(checks: GrammarChecks) -> None:
    """One of a tenant is compiled at a time, and there is room for another tenant's."""
    await checks.check("a", "ok")
    heavy = [asyncio.create_task(checks.check("a", f"sleep 1{zeros}")) for zeros in ("", ".0")]
    light = await checks.check("b", "ok b")

    assert light.startswith("checked ok")
    assert not any(task.done() for task in heavy)
    for task in heavy:
        task.cancel()
    await asyncio.wait(heavy)


async def test_grammar_whose_callers_have_left_is_not_compiled(checks: GrammarChecks) -> None:
    await checks.check("a", "ok")
    running = asyncio.create_task(checks.check("a", "sleep 0.3"))
    waiting = asyncio.create_task(checks.check("a", "sleep 29"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([running, waiting])

    async with asyncio.timeout(20):
        assert (await checks.check("a", "ok then")).startswith("checked ok")


async def test_worker_that_cannot_start_fails_its_calls_and_no_others() -> None:
    checks = _checks("broken")
    for _ in range(2):
        with pytest.raises(EngineError, match="compiles grammars first"):
            await checks.check("a", "ok")
    checks.stop()


async def test_worker_that_is_killed_is_started_again(checks: GrammarChecks) -> None:
    before = set(_children())
    await checks.check("a", "ok")
    running = asyncio.create_task(checks.check("a", "sleep 29"))
    await asyncio.sleep(0)
    (worker,) = {child for child in psutil.Process().children() if child not in before} & {
        child for child in psutil.Process().children() if child.children()
    }
    forks = worker.children()
    worker.kill()
    with pytest.raises(EngineError):
        await running

    assert (await checks.check("a", "ok again")).startswith("checked ok")
    await eventually(lambda: not any(_runs(fork) for fork in forks[1:]), "idle forks have ended")


async def test_nothing_is_left_when_the_checks_stop() -> None:
    before: Any = set(_children())
    checks = _checks()
    await checks.check("a", "ok")
    made = [child for child in _children() if child not in before]
    checks.stop()

    assert len(made) >= 3
    await eventually(lambda: not any(_runs(child) for child in made), "all have ended")


async def test_nothing_is_started_before_the_first_grammar() -> None:
    before = set(_children())
    _checks().stop()

    assert before == set(_children())


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
