"""Grammars are compiled in processes that can be killed without affecting other callers."""

import asyncio
import os
import pickle
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import psutil  # type: ignore[import-untyped]
import pytest

from justitia_ray.errors import EngineError, RequestError
from justitia_ray.serve.engines.grammar_checks import GrammarChecks
from justitia_ray.serve.engines.grammar_worker import NO_JOB, Forks, Job, Result, run_worker
from tests.eventually import eventually
from tests.unit.serve.engines.scripted_judge import scripted_judge

_MIB = 2**20
_FORK_DIED = "the fork that was at this grammar has died; try again"


def _scripted_checks(config: str = "fine", timeout_s: float = 30.0) -> GrammarChecks:
    return GrammarChecks(scripted_judge, config, timeout_s, 200 * _MIB)


@pytest.fixture
async def checks() -> AsyncIterator[GrammarChecks]:
    checks = _scripted_checks()
    yield checks
    checks.stop()


async def _check_grammar(checks: GrammarChecks, tenant: str, grammar: str) -> str:
    return str((await checks.check(tenant, {"do": grammar}))["do"])


def _child_processes() -> list[psutil.Process]:
    return list(psutil.Process().children(recursive=True))


async def test_normalised_grammar_is_returned_and_compiled_once(
    checks: GrammarChecks,
) -> None:
    first = await _check_grammar(checks, "a", "ok")
    again = await asyncio.gather(*(_check_grammar(checks, tenant, "ok") for tenant in "ab"))

    assert first.startswith("checked ok")
    assert [first, first] == again


async def test_concurrent_calls_with_one_grammar_share_its_compilation(
    checks: GrammarChecks,
) -> None:
    both = await asyncio.gather(
        _check_grammar(checks, "a", "ok"), _check_grammar(checks, "b", "ok")
    )

    assert both[0] == both[1]


async def test_idle_compiler_processes_are_reused(checks: GrammarChecks) -> None:
    said = [await _check_grammar(checks, "a", f"ok {number}") for number in range(10)]

    assert len({one.split(", ")[1] for one in said}) <= 2


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("refuse it is empty", "it is empty"),
        ("sleep 60", r"longer than 3 s to compile \(engine\.grammar_timeout_s\)"),
        (f"eat {400 * _MIB}", r"more than 200 MiB \(engine\.grammar_memory_bytes\)"),
        ("crash", "its compiler breaks down"),
        ("panic it is too odd", "it is too odd"),
        ("refuse \ud800 is half of a character", "is half of a character"),
    ],
)
async def test_grammar_that_fails_to_compile_fails_only_its_call(grammar: str, reason: str) -> None:
    checks = _scripted_checks(timeout_s=3.0 if grammar.startswith("sleep") else 30.0)
    assert (await _check_grammar(checks, "a", f"eat {50 * _MIB}")).startswith("checked eat")
    for _ in range(2):
        with pytest.raises(RequestError, match=reason):
            await _check_grammar(checks, "a", grammar)
    assert (await _check_grammar(checks, "a", "ok")).startswith("checked ok")
    checks.stop()


async def test_slow_grammars_of_one_tenant_do_not_delay_another(checks: GrammarChecks) -> None:
    """Each tenant compiles one grammar at a time in a slot of its own."""
    await _check_grammar(checks, "a", "ok")
    heavy = [
        asyncio.create_task(_check_grammar(checks, "a", f"sleep 1{zeros}")) for zeros in ("", ".0")
    ]
    light = await _check_grammar(checks, "b", "ok b")

    assert light.startswith("checked ok")
    assert not any(task.done() for task in heavy)
    for task in heavy:
        task.cancel()
    await asyncio.wait(heavy)


async def test_grammar_without_waiting_callers_is_not_compiled(checks: GrammarChecks) -> None:
    await _check_grammar(checks, "a", "ok")
    running = asyncio.create_task(_check_grammar(checks, "a", "sleep 0.3"))
    waiting = asyncio.create_task(_check_grammar(checks, "a", "sleep 29"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([running, waiting])

    async with asyncio.timeout(20):
        assert (await _check_grammar(checks, "a", "ok then")).startswith("checked ok")


@pytest.mark.parametrize("kind", ["killed", "disk", "package"])
async def test_crash_of_a_compiler_process_is_an_engine_failure(
    checks: GrammarChecks, kind: str, tmp_path: Path
) -> None:
    """A stored refusal would answer 400 to a valid grammar for ten minutes."""
    grammar = f"once {tmp_path / 'mark'} {kind}"
    with pytest.raises(EngineError, match="compiles grammars first"):
        await _check_grammar(checks, "a", grammar)

    assert (await _check_grammar(checks, "a", grammar)).startswith("checked once")


async def test_large_grammars_of_two_tenants_reach_the_worker_whole(checks: GrammarChecks) -> None:
    """If writes to the pipe mixed, the worker could take a caller's text for a message header."""
    for number in range(8):
        said = await asyncio.gather(
            *(
                _check_grammar(checks, tenant, f"ok {tenant}{number}" + tenant * 2 * _MIB)
                for tenant in "ab"
            )
        )
        assert all(one.startswith("checked ok") for one in said)


async def test_grammar_that_cannot_be_encoded_is_the_callers_error(
    checks: GrammarChecks,
) -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(RequestError, match="the grammar or schema is refused"):
        await checks.check("a", {"json": {"enum": nested}})


async def test_grammar_worker_that_cannot_start_fails_only_its_own_calls() -> None:
    checks = _scripted_checks("broken")
    for _ in range(2):
        with pytest.raises(EngineError, match="compiles grammars first"):
            await _check_grammar(checks, "a", "ok")
    checks.stop()


async def test_grammar_worker_that_ends_at_once_is_not_restarted_for_each_call() -> None:
    """Starting a worker takes seconds and half a gigabyte of memory.

    A worker that never gave a verdict may never do so.
    """
    checks = _scripted_checks("broken")
    with pytest.raises(EngineError, match="it has ended"):
        await _check_grammar(checks, "a", "ok")
    before = set(_child_processes())
    both = await asyncio.gather(
        *(_check_grammar(checks, tenant, "ok") for tenant in "ab"), return_exceptions=True
    )

    assert before >= set(_child_processes())
    assert all("another is started in 1 s at most" in str(error) for error in both)
    checks.stop()


async def test_killed_grammar_worker_is_restarted(checks: GrammarChecks) -> None:
    before = set(_child_processes())
    await _check_grammar(checks, "a", "ok")
    running = asyncio.create_task(_check_grammar(checks, "a", "sleep 29"))
    await asyncio.sleep(0)
    (worker,) = {child for child in psutil.Process().children() if child not in before} & {
        child for child in psutil.Process().children() if child.children()
    }
    forks = worker.children()
    worker.kill()
    with pytest.raises(EngineError):
        await running

    assert (await _check_grammar(checks, "a", "ok again")).startswith("checked ok")
    await eventually(
        lambda: not any(_is_running(fork) for fork in forks[1:]), "idle forks have ended"
    )


async def test_stopping_the_grammar_checks_leaves_no_process() -> None:
    before: Any = set(_child_processes())
    checks = _scripted_checks()
    await _check_grammar(checks, "a", "ok")
    made = [child for child in _child_processes() if child not in before]
    checks.stop()

    assert len(made) >= 3
    await eventually(lambda: not any(_is_running(child) for child in made), "all have ended")


async def test_grammar_worker_is_not_started_before_the_first_grammar() -> None:
    before = set(_child_processes())
    _scripted_checks().stop()

    assert before == set(_child_processes())


@contextmanager
def _worker_process(config: str) -> Iterator[tuple[psutil.Process, Connection]]:
    here, there = Pipe()
    arguments = (scripted_judge, config, there, 30.0, 200 * _MIB)
    process = get_context("spawn").Process(target=run_worker, args=arguments, daemon=True)
    process.start()
    there.close()
    here.recv_bytes()
    yield psutil.Process(process.pid), here
    here.close()
    process.kill()
    process.join()


@pytest.fixture
def worker() -> Iterator[tuple[psutil.Process, Connection]]:
    with _worker_process("fine") as made:
        yield made


def _results_of_job(pipe: Connection, number: int) -> list[Result]:
    """Send a job to the compiling worker, and return its results."""
    pipe.send_bytes(msgspec.msgpack.encode(Job(number, b'{"do": "ok"}')))
    results = [msgspec.msgpack.decode(pipe.recv_bytes(), type=Result)]
    while results[-1].number != number:
        results.append(msgspec.msgpack.decode(pipe.recv_bytes(), type=Result))
    return results


async def test_grammar_worker_backs_off_while_forks_fail(
    tmp_path: Path,
) -> None:
    """Without pauses the worker would fork in a busy loop while its calls time out."""
    file = tmp_path / "there is room"
    with _worker_process(f"needs {file}") as (process, pipe):
        *notices, result = _results_of_job(pipe, 1)
        while len(notices) < 3:
            notices.append(msgspec.msgpack.decode(pipe.recv_bytes(), type=Result))
        await eventually(lambda: not process.children(), "no fork that has failed is left")
        file.touch()
        answers: list[Result] = []

        def has_recovered() -> bool:
            answers.append(_results_of_job(pipe, 2 + len(answers))[-1])
            return bool(answers[-1].checked)

        await eventually(has_recovered, "a fork is made")

    assert result.is_accident
    assert result.reason in ("no fork for it can be made: no room for a judge", _FORK_DIED)
    assert [(NO_JOB, 0.5), (NO_JOB, 1.0), (NO_JOB, 2.0)] == [
        (one.number, one.took_s) for one in notices
    ]


def test_grammar_worker_survives_failing_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = Pipe()

    def refuse_fork() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse_fork)
    forks = Forks(there, scripted_judge("fine"), 30.0, 200 * _MIB)
    forks._begin_job(Job(1, b'{"do": "ok"}'))
    notice, result = (msgspec.msgpack.decode(here.recv_bytes(), type=Result) for _ in range(2))

    assert (NO_JOB, 0.5) == (notice.number, notice.took_s)
    assert (1, True) == (result.number, result.is_accident)
    assert "Resource temporarily unavailable" in result.reason
    assert not here.poll()


async def test_failed_fork_of_the_grammar_worker_is_logged_and_fails_its_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checks = _scripted_checks(f"needs {tmp_path / 'room'}")
    with pytest.raises(EngineError, match="no room for a judge"):
        await _check_grammar(checks, "a", "ok")
    checks.stop()

    assert any("replica.grammar_fork_failed" in line for line in caplog.messages)


async def test_grammar_worker_survives_a_fork_that_dies_when_a_job_arrives(
    worker: tuple[psutil.Process, Connection],
) -> None:
    """The job must not go to the dead fork, even if both events arrive together."""
    process, pipe = worker

    def send_job(number: int) -> None:
        pipe.send_bytes(msgspec.msgpack.encode(Job(number, b'{"do": "ok"}')))

    def receive_result() -> Result:
        return msgspec.msgpack.decode(pipe.recv_bytes(), type=Result)

    send_job(1)
    results = [receive_result()]
    process.suspend()
    forks = process.children()
    for fork in forks:
        fork.kill()
    await eventually(lambda: not any(_is_running(fork) for fork in forks), "both are dead")
    send_job(2)
    process.resume()
    results.append(receive_result())
    send_job(3)
    results.append(receive_result())

    assert len(forks) == 2
    assert [(1, False), (2, False), (3, False)] == [
        (one.number, one.is_accident) for one in results
    ]
    assert all(one.checked for one in results)


class _MaliciousPickle:
    """Object that creates a folder if it is unpickled."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._folder,)


@pytest.mark.parametrize("is_frame", [True, False])
def test_grammar_worker_never_unpickles_its_input(
    worker: tuple[psutil.Process, Connection], tmp_path: Path, is_frame: bool
) -> None:
    """A caller's text must not run code in the worker or in its forks.

    Protocol 0 is text that a schema can contain.
    """
    _, pipe = worker
    made = tmp_path / "made"
    code = pickle.dumps(_MaliciousPickle(str(made)), protocol=0)
    pipe.send_bytes(code if is_frame else msgspec.msgpack.encode(Job(1, code)))
    if is_frame:
        with pytest.raises(EOFError):
            pipe.recv_bytes()
    else:
        assert msgspec.msgpack.decode(pipe.recv_bytes(), type=Result).reason

    assert not made.exists()


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
