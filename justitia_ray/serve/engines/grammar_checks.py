"""Compile grammars in a separate process first, so that no grammar blocks a replica's engine.

vLLM checks a grammar on the event loop of its server and compiles it in the engine's process: a
schema with nested alternatives takes seconds to minutes and unbounded memory. Here a call with a
grammar waits until a child process (`grammar_worker`) has compiled it within limits of time and
memory. Only a grammar that compiled is passed on to vLLM, with the changes that vLLM's checks made,
and without a second check on the event loop. Results are cached by the grammar's digest.

The worker is started with the first grammar: it takes some seconds and half a gigabyte.
"""

import asyncio
import hashlib
import json
import logging
import multiprocessing
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec

from justitia_ray.errors import EngineError, RequestError
from justitia_ray.observability.log_events import log_event
from justitia_ray.serve.engines.grammar_worker import NO_JOB, Job, Judge, Result, Tries, run_worker
from justitia_ray.units import ClientId, Seconds

logger = logging.getLogger("ray.serve")

_AT_ONCE = 2
"""Number of grammars that are compiled at once. Each belongs to another tenant, so a slow grammar
delays only its tenant.
"""
_KNOWN_BYTES = 32 * 2**20
"""Maximum bytes of cached results of grammar checks."""
_REFUSED_S: Seconds = 600.0
"""Seconds for which the refusal of a grammar is cached, because a busy machine may have caused it.
"""
_START_S: Seconds = 120.0
"""Time limit in seconds for starting the grammar worker."""
_PAUSE_S: Seconds = 1.0
"""Pause in seconds after a grammar worker ended without a result; it doubles with each further
failure.
"""
_LONGEST_PAUSE_S: Seconds = 60.0
_GRACE_S: Seconds = 5.0
"""Seconds beyond a grammar's time limit after which a silent worker is killed."""


@dataclass(slots=True)
class _WaitingGrammar:
    """Grammar that is queued or being compiled, with the calls that wait for it."""

    tenant: ClientId
    grammar: bytes
    digest: bytes
    done: "asyncio.Future[Result]"
    number: int = 0
    """Job number of the grammar; 0 while it is queued."""
    callers: int = 0


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    ready: "asyncio.Future[None]"
    watchdog: asyncio.TimerHandle | None = None
    waits: dict[int, _WaitingGrammar] = field(default_factory=dict)
    """Grammars that the worker is compiling, by job number."""
    results: int = 0
    """Number of grammars for which the worker has returned a result."""
    sending: threading.Lock = field(default_factory=threading.Lock)
    """Lock for sending a job to the worker, because the writes of large jobs must not interleave.
    """

    def send(self, job: Job) -> None:
        """Send a job to the worker and wait until it has read the job; runs in a thread."""
        # The thread that reads from the worker process notices if it has ended.
        with self.sending, suppress(OSError):
            self.pipe.send_bytes(msgspec.msgpack.encode(job))


class GrammarChecks:
    """Compiles the grammars of calls before the engine does; used on one event loop.

    Args:
        make: Creates the `Judge` in the worker, given `config`: `grammar_worker.vllm_judge`.
        config: vLLM's `VllmConfig`.
        timeout_s: Time limit for compiling one grammar.
        memory_bytes: Memory limit for compiling one grammar.
    """

    def __init__(
        self,
        make: Callable[[Any], Callable[[], Judge]],
        config: Any,
        timeout_s: Seconds,
        memory_bytes: int,
    ) -> None:
        self._make = make
        self._config = config
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._worker: _Worker | None = None
        self._worker_tries = Tries(_PAUSE_S, _LONGEST_PAUSE_S)
        """State of the attempts to start the worker, which fail if the worker ends without a
        result.
        """
        self._numbers = 0
        self._known: OrderedDict[bytes, tuple[Result, Seconds]] = OrderedDict()
        self._known_bytes = 0
        self._waits: dict[bytes, _WaitingGrammar] = {}
        """Grammars that are queued or being compiled, by digest."""
        self._lines: dict[ClientId, deque[_WaitingGrammar]] = {}
        self._spent: dict[ClientId, Seconds] = {}
        """Compile time by tenant since the queue was last empty. A new tenant starts at the present
        minimum.
        """

    async def check(self, tenant: ClientId, grammar: Mapping[str, Any]) -> dict[str, Any]:
        """Return a grammar's fields after vLLM's checks.

        Args:
            tenant: Tenant of the call; a tenant's grammars are compiled one after the other.
            grammar: Fields of vLLM's `StructuredOutputsParams`.

        Raises:
            RequestError: If vLLM refuses the grammar, or compiling it takes too much time or
                memory.
            EngineError: If the worker cannot be started, or fails for another reason.
        """
        try:
            raw = json.dumps(grammar).encode()
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the grammar or schema is refused: {error}") from None
        digest = hashlib.sha256(raw).digest()
        result = self._find_result(digest)
        if result is None:
            wait = self._waits.get(digest)
            if wait is None:
                wait = self._enqueue_check(tenant, raw, digest)
            wait.callers += 1
            try:
                result = await asyncio.shield(wait.done)
            finally:
                wait.callers -= 1
                if not wait.callers and not wait.number:
                    self._give_up(wait)
        if result.reason:
            raise RequestError(f"the grammar or schema is refused: {result.reason}")
        checked: dict[str, Any] = json.loads(result.checked)
        return checked

    def _enqueue_check(self, tenant: ClientId, raw: bytes, digest: bytes) -> _WaitingGrammar:
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda done: done.cancelled() or done.exception())
        wait = self._waits[digest] = _WaitingGrammar(tenant, raw, digest, done)
        if tenant not in self._lines:
            self._lines[tenant] = deque()
            least = min((self._spent[other] for other in self._lines if other != tenant), default=0)
            self._spent[tenant] = max(self._spent.get(tenant, 0.0), least)
        self._lines[tenant].append(wait)
        self._send_queued_grammars()
        return wait

    def _give_up(self, wait: _WaitingGrammar) -> None:
        """Drop a queued grammar if no call waits for it any more."""
        line = self._lines.get(wait.tenant)
        if line is not None and wait in line:
            line.remove(wait)
            del self._waits[wait.digest]
            if not line:
                del self._lines[wait.tenant]

    def _send_queued_grammars(self) -> None:
        """Send queued grammars to the worker, starting with the tenant of least compile time."""
        worker = self._worker
        if worker is None:
            tries = self._worker_tries
            left_s = tries.next_at - asyncio.get_running_loop().time()
            if left_s > 0:
                self._fail_waiting(f"{tries.reason}; another is started in {left_s:.0f} s at most")
                return
            worker = self._start_worker()
        if not worker.ready.done():
            return
        while len(worker.waits) < _AT_ONCE:
            busy = {wait.tenant for wait in worker.waits.values()}
            free = [tenant for tenant in self._lines if tenant not in busy]
            if not free:
                break
            tenant = min(free, key=self._spent.__getitem__)
            wait = self._lines[tenant].popleft()
            self._numbers += 1
            wait.number = self._numbers
            worker.waits[wait.number] = wait
            job = Job(wait.number, wait.grammar)
            threading.Thread(target=worker.send, args=(job,), daemon=True).start()
            if not self._lines[tenant]:
                del self._lines[tenant]
        self._restart_kill_timer(worker)

    def _restart_kill_timer(self, worker: _Worker) -> None:
        """Restart the timer that kills a silent worker."""
        if worker.watchdog is not None:
            worker.watchdog.cancel()
            worker.watchdog = None
        if worker.waits or not worker.ready.done():
            longest_s = self._timeout_s + _GRACE_S if worker.ready.done() else _START_S
            loop = asyncio.get_running_loop()
            worker.watchdog = loop.call_later(longest_s, worker.process.kill)

    # --- the worker

    def _start_worker(self) -> _Worker:
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=run_worker,
            args=(self._make, self._config, there, self._timeout_s, self._memory_bytes),
            name="grammar-worker",
            daemon=True,
        )
        loop = asyncio.get_running_loop()
        worker = self._worker = _Worker(process, here, loop.create_future())
        reader = threading.Thread(
            target=self._forward_results, args=(worker, there, loop), daemon=True
        )
        reader.start()
        self._restart_kill_timer(worker)
        return worker

    def _forward_results(
        self, worker: _Worker, there: Connection, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Start the worker and forward its results until the worker ends; runs in a thread."""
        reason = "it has ended"
        try:
            worker.process.start()
            there.close()
            worker.pipe.recv_bytes()
            loop.call_soon_threadsafe(self._note_ready, worker)
            while True:
                result = msgspec.msgpack.decode(worker.pipe.recv_bytes(), type=Result)
                loop.call_soon_threadsafe(self._note_result, worker, result)
        except (EOFError, OSError):
            pass
        except Exception as error:  # for instance an unpicklable configuration
            reason = f"{type(error).__name__}: {error}"
        there.close()
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._note_end, worker, reason)

    def _note_ready(self, worker: _Worker) -> None:
        worker.ready.set_result(None)
        if worker is self._worker:
            self._send_queued_grammars()

    def _note_result(self, worker: _Worker, result: Result) -> None:
        if result.number == NO_JOB:
            log_event(
                logger,
                logging.ERROR,
                "replica.grammar_fork_failed",
                reason=result.reason,
                next_try_in_s=result.took_s,
            )
            return
        worker.results += not result.is_accident
        wait = worker.waits.pop(result.number)
        self._waits.pop(wait.digest, None)
        self._spent[wait.tenant] = self._spent.get(wait.tenant, 0.0) + result.took_s
        if result.is_accident:
            _fail_wait(wait, result.reason)
        else:
            if not wait.done.done():
                wait.done.set_result(result)
            self._keep_result(wait.digest, result)
        if not self._waits:
            self._spent.clear()
        if self._lines:
            self._send_queued_grammars()
        else:
            self._restart_kill_timer(worker)

    def _note_end(self, worker: _Worker, reason: str) -> None:
        """Fail the grammars of an ended worker process; the next grammar starts a new worker."""
        if worker.watchdog is not None:
            worker.watchdog.cancel()
        if worker is not self._worker:
            return
        self._worker = None
        log_event(logger, logging.ERROR, "replica.grammar_worker_ended", reason=reason)
        if worker.results:
            self._worker_tries.succeed()
        else:
            self._worker_tries.fail(reason, asyncio.get_running_loop().time())
        for wait in worker.waits.values():
            self._waits.pop(wait.digest, None)
            _fail_wait(wait, reason)
        if self._lines:
            self._send_queued_grammars()

    def _fail_waiting(self, reason: str) -> None:
        lines, self._lines = self._lines, {}
        for line in lines.values():
            for wait in line:
                self._waits.pop(wait.digest, None)
                _fail_wait(wait, reason)

    # --- cached results

    def _find_result(self, digest: bytes) -> Result | None:
        found = self._known.get(digest)
        if found is None:
            return None
        result, since = found
        if result.reason and asyncio.get_running_loop().time() - since >= _REFUSED_S:
            return None
        self._known.move_to_end(digest)
        return result

    def _keep_result(self, digest: bytes, result: Result) -> None:
        if digest in self._known:
            self._known_bytes -= _result_bytes(self._known.pop(digest)[0])
        self._known[digest] = (result, asyncio.get_running_loop().time())
        self._known_bytes += _result_bytes(result)
        while self._known_bytes > _KNOWN_BYTES or len(self._known) > 10_000:
            _, (oldest, _) = self._known.popitem(last=False)
            self._known_bytes -= _result_bytes(oldest)

    def stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            if worker.watchdog is not None:
                worker.watchdog.cancel()
            if worker.process.pid is not None:
                worker.process.kill()


def _fail_wait(wait: _WaitingGrammar, reason: str) -> None:
    if not wait.done.done():
        wait.done.set_exception(EngineError(f"the process that compiles grammars first: {reason}"))


def _result_bytes(result: Result) -> int:
    return len(result.checked) + len(result.reason)
