"""Worker process that compiles grammars with vLLM's checks and compilers in forked children.

The worker imports vLLM and loads the model's tokenizer once, then forks. A fork takes milliseconds,
and a fork that takes too long or too much memory can be killed without harm. Two forks wait for
work; a fork that finishes quickly is reused for the next grammar.

The worker runs beside an engine's replica and exits when its pipe is closed. Messages in the pipes
contain callers' text, so they are encoded as MessagePack and JSON: reading a pickle may run code.
"""

import json
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import msgspec

from justitia_ray.units import Seconds

_SPARE = 2
"""Number of idle forks of the grammar worker that wait for jobs."""
_GRAMMARS_EACH = 50
"""Number of grammars after which a worker's fork is replaced, because compilers do not free all
memory.
"""
_BACKENDS = {
    "xgrammar": ("backend_xgrammar", "XgrammarBackend"),
    "guidance": ("backend_guidance", "GuidanceBackend"),
    "outlines": ("backend_outlines", "OutlinesBackend"),
    "lm-format-enforcer": ("backend_lm_format_enforcer", "LMFormatEnforcerBackend"),
}
"""Grammar compilers of vLLM: (module, class) by name."""
_NO_MEMORY = 1
"""Exit code of a grammar worker's fork that exceeded its memory limit."""
_BY_ITS_GRAMMAR = frozenset(
    {
        _NO_MEMORY,
        *(-number for number in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE)),
        -signal.SIGILL,
    }
)
"""Exit codes of a fork that was ended by its grammar. Other codes, such as SIGKILL's, are
accidents.
"""
_HAS_DIED = "the fork that was at this grammar has died; try again"
_PAUSE_S: Seconds = 0.5
"""Pause in seconds after a fork failed, doubled with each consecutive failure."""
_LONGEST_PAUSE_S: Seconds = 30.0
NO_JOB = 0
"""Job number of a `Result` that reports a failed fork instead of a compiled grammar."""
_PAGE = resource.getpagesize()


class Job(NamedTuple):
    """Request to the grammar worker to compile a grammar."""

    number: int
    grammar: bytes
    """Fields of vLLM's `StructuredOutputsParams`, as JSON."""


class Result(NamedTuple):
    """Outcome of a `Job` of the grammar worker."""

    number: int
    checked: bytes
    """The grammar's fields after vLLM's checks, as JSON; empty if it failed."""
    reason: str
    """Why the grammar failed; empty if it compiled."""
    took_s: Seconds
    """Duration of the job in seconds; for `NO_JOB`, the pause before the next fork."""
    is_accident: bool
    """Whether the failure was an accident in the worker, which may not happen again."""


@dataclass(slots=True)
class Tries:
    """State of retries with exponential backoff: each pause is twice as long as the last."""

    first_pause_s: Seconds
    longest_pause_s: Seconds
    failures: int = 0
    """Number of consecutive failed tries."""
    reason: str = ""
    """Reason for the last failed try."""
    next_at: Seconds = 0.0
    """Time of the next try in seconds, on the caller's clock."""

    def succeed(self) -> None:
        self.failures = 0

    def fail(self, reason: str, now: Seconds) -> Seconds:
        """Record a failed try; return the pause before the next try in seconds."""
        pause_s = min(self.longest_pause_s, self.first_pause_s * (1 << min(self.failures, 10)))
        self.failures += 1
        self.reason, self.next_at = reason, now + pause_s
        return pause_s


Judge = Callable[[bytes], bytes]
"""Function that compiles a grammar and returns its fields after vLLM's checks; raises if the
grammar is invalid.
"""


def vllm_judge(config: Any) -> Callable[[], Judge]:
    """Return a function that creates a checker of grammars for a `VllmConfig`, in each fork."""
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.tokenizers import cached_tokenizer_from_config
    from vllm.v1.structured_output.request import get_structured_output_key

    tokenizer = cached_tokenizer_from_config(model_config=config.model_config)
    vocabulary = config.model_config.get_vocab_size()

    def make_backend(name: str) -> Any:
        module, kind = _BACKENDS[name]
        backend = getattr(import_module(f"vllm.v1.structured_output.{module}"), kind)
        return backend(config, tokenizer=tokenizer, vocab_size=vocabulary)

    def load_judge() -> Judge:
        backends = {}
        if config.structured_outputs_config.backend in ("auto", "xgrammar"):
            backends["xgrammar"] = make_backend("xgrammar")

        def judge(raw: bytes) -> bytes:
            grammar = object.__new__(StructuredOutputsParams)  # already validated
            vars(grammar).update(json.loads(raw))
            params = SamplingParams(structured_outputs=grammar)
            params._validate_structured_outputs(
                config.model_config, config.structured_outputs_config, tokenizer
            )
            checked: Any = params.structured_outputs
            backend = backends.get(checked._backend)
            if backend is None:
                backend = backends[checked._backend] = make_backend(checked._backend)
            backend.compile_grammar(*get_structured_output_key(checked))
            return json.dumps(vars(checked)).encode()

        return judge

    return load_judge


class _Outcome(NamedTuple):
    checked: bytes = b""
    reason: str = ""
    is_accident: bool = False


@dataclass(slots=True)
class _Fork:
    pid: int
    pipe: Connection
    is_ready: bool = False
    """Whether the fork has loaded its grammar compilers."""
    job: Job | None = None
    began_at: Seconds = 0.0
    grammars: int = 0


class Forks:
    """Pool of forked processes in the grammar worker, and the jobs that they run.

    Args:
        answers: Pipe from which jobs are read and to which results are written.
        load_judge: Creates the `Judge`, once in each fork.
        timeout_s: Time limit for one grammar.
        memory_bytes: Memory that a fork may allocate beyond its memory at the start.
    """

    def __init__(
        self,
        answers: Connection,
        load_judge: Callable[[], Judge],
        timeout_s: Seconds,
        memory_bytes: int,
    ) -> None:
        self._answers = answers
        self._make_judge = load_judge
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._forks: dict[Connection, _Fork] = {}
        self._fork_tries = Tries(_PAUSE_S, _LONGEST_PAUSE_S)
        self._refill_spares()

    def serve(self) -> None:
        """Run jobs from the replica until the pipe to it is closed."""
        try:
            while True:
                busy = [fork for fork in self._forks.values() if fork.job is not None]
                ends = [fork.began_at + self._timeout_s for fork in busy]
                if len(self._forks) < _SPARE:
                    ends.append(self._fork_tries.next_at)
                left_s = max(0.0, min(ends) - time.monotonic()) if ends else None
                for pipe in wait([self._answers, *self._forks], left_s):
                    assert isinstance(pipe, Connection)
                    if pipe is self._answers:
                        self._begin_job(msgspec.msgpack.decode(pipe.recv_bytes(), type=Job))
                    elif pipe in self._forks:  # the fork may have died meanwhile
                        self._forward_result(self._forks[pipe])
                for fork in busy:
                    if fork.job and time.monotonic() >= fork.began_at + self._timeout_s:
                        self._kill_fork(fork)
                        self._report_timeout(fork)
                self._refill_spares()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            for fork in self._forks.values():
                os.kill(fork.pid, signal.SIGKILL)

    def _begin_job(self, job: Job) -> None:
        began_at = time.monotonic()
        for fork in [fork for fork in self._forks.values() if fork.job is None]:
            if self._send_job(fork, job, began_at):
                return
        extra = self._fork_child()
        if extra is None:
            self._send_result(job, self._outcome_without_fork(), began_at)
        elif not self._send_job(extra, job, began_at):
            self._end_job(extra, _Outcome(reason=_HAS_DIED, is_accident=True))

    def _send_job(self, fork: _Fork, job: Job, began_at: Seconds) -> bool:
        """Send a job to a fork; return False if the fork is dead."""
        fork.job, fork.began_at = job, began_at
        fork.grammars += 1
        try:
            fork.pipe.send_bytes(job.grammar)
        except OSError:
            self._kill_fork(fork)
            return False
        return True

    def _forward_result(self, fork: _Fork) -> None:
        """Forward the result of a fork to the replica, or report that the fork has died."""
        try:
            judged = msgspec.msgpack.decode(fork.pipe.recv_bytes(), type=_Outcome)
        except (EOFError, OSError):
            judged = self._outcome_of_exit(fork, self._kill_fork(fork))
        if fork.is_ready:
            self._end_job(fork, judged)
        elif judged.reason:
            if fork.pipe in self._forks:
                self._kill_fork(fork)
            self._fail_fork(fork, judged.reason)
        else:
            fork.is_ready = True
            self._fork_tries.succeed()
            fork.began_at = time.monotonic()

    def _report_timeout(self, fork: _Fork) -> None:
        limit = f"{self._timeout_s:g} s"
        if fork.is_ready:
            reason = f"it takes longer than {limit} to compile (engine.grammar_timeout_s)"
            self._end_job(fork, _Outcome(reason=reason))
        else:
            self._fail_fork(fork, f"it had not begun after {limit}")

    def _fail_fork(self, fork: _Fork, reason: str) -> None:
        """Record that a fork failed to start, and fail its job."""
        self._note_failed_fork(reason)
        self._end_job(fork, self._outcome_without_fork())

    def _outcome_without_fork(self) -> _Outcome:
        return _Outcome(
            reason=f"no fork for it can be made: {self._fork_tries.reason}", is_accident=True
        )

    def _outcome_of_exit(self, fork: _Fork, exit_code: int) -> _Outcome:
        """Return the outcome for a fork that exited early: a refused grammar, or an accident."""
        if not fork.is_ready:
            return _Outcome(reason=f"it ended with code {exit_code} as it began", is_accident=True)
        if exit_code in _BY_ITS_GRAMMAR:
            limit = f"{self._memory_bytes / 2**20:g} MiB (engine.grammar_memory_bytes)"
            return _Outcome(reason=f"its compiler breaks down, or needs more than {limit}")
        return _Outcome(reason=_HAS_DIED, is_accident=True)

    def _end_job(self, fork: _Fork, judged: _Outcome) -> None:
        """End the job of a fork, if it has one; kill the fork after `_GRAMMARS_EACH` grammars."""
        if fork.job is not None:
            job, fork.job = fork.job, None
            self._send_result(job, judged, fork.began_at)
        if fork.grammars >= _GRAMMARS_EACH and fork.pipe in self._forks:
            self._kill_fork(fork)

    def _send_result(self, job: Job, judged: _Outcome, began_at: Seconds) -> None:
        took_s = time.monotonic() - began_at
        result = Result(job.number, judged.checked, judged.reason, took_s, judged.is_accident)
        self._answers.send_bytes(msgspec.msgpack.encode(result))

    def _kill_fork(self, fork: _Fork) -> int:
        """Kill a fork; return its exit code, which it may have had before the kill."""
        del self._forks[fork.pipe]
        os.kill(fork.pid, signal.SIGKILL)
        _, status = os.waitpid(fork.pid, 0)
        fork.pipe.close()
        return os.waitstatus_to_exitcode(status)

    def _refill_spares(self) -> None:
        while len(self._forks) < _SPARE and self._fork_child() is not None:
            pass

    def _note_failed_fork(self, reason: str) -> None:
        """Start the pause before the next fork, and report the failed fork to the replica."""
        pause_s = self._fork_tries.fail(reason, time.monotonic())
        result = Result(NO_JOB, b"", reason, pause_s, is_accident=True)
        self._answers.send_bytes(msgspec.msgpack.encode(result))

    def _fork_child(self) -> _Fork | None:
        """Fork a process; return None if forking fails or the pause after a failure is not over."""
        if time.monotonic() < self._fork_tries.next_at:
            return None
        try:
            here, there = Pipe()
        except OSError as error:
            self._note_failed_fork(_encodable_text(error))
            return None
        try:
            pid = os.fork()
        except OSError as error:
            here.close()
            there.close()
            self._note_failed_fork(_encodable_text(error))
            return None
        if pid == 0:
            try:
                for pipe in (here, self._answers, *self._forks):
                    pipe.close()
                self._compile_grammars(there)
            finally:
                os._exit(0)
        there.close()
        fork = self._forks[here] = _Fork(pid, here)
        return fork

    def _compile_grammars(self, pipe: Connection) -> None:
        """Compile the grammars that arrive on a pipe; runs in the forked process."""
        try:
            judge = self._make_judge()
        except Exception as error:
            pipe.send_bytes(
                msgspec.msgpack.encode(_Outcome(reason=_encodable_text(error), is_accident=True))
            )
            return
        pipe.send_bytes(msgspec.msgpack.encode(_Outcome()))
        with open("/proc/self/statm", encoding="ascii") as file:
            data_pages = int(file.read().split()[5])
        limit = data_pages * _PAGE + self._memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        try:
            while True:
                raw = pipe.recv_bytes()
                # This alarm ends the fork if the worker dies during a compilation.
                signal.setitimer(signal.ITIMER_REAL, 2 * self._timeout_s + 1)
                judged = _judge_grammar(judge, raw)
                signal.setitimer(signal.ITIMER_REAL, 0)
                pipe.send_bytes(msgspec.msgpack.encode(judged))
        except MemoryError:
            os._exit(_NO_MEMORY)


def _judge_grammar(judge: Judge, raw: bytes) -> _Outcome:
    """Compile a grammar and return the outcome; errors become outcomes.

    Raises:
        MemoryError: If the fork's memory limit is exceeded.
    """
    try:
        return _Outcome(judge(raw))
    except (MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except (OSError, ImportError) as error:  # Local files or packages failed, by accident.
        return _Outcome(reason=_encodable_text(error), is_accident=True)
    except BaseException as error:  # A panic in Rust code is a BaseException.
        return _Outcome(reason=_encodable_text(error))


def _encodable_text(error: BaseException) -> str:
    """Return an error's text without lone surrogates, which UTF-8 cannot encode."""
    text = str(error) or type(error).__name__
    return text.encode(errors="backslashreplace").decode()


def run_worker(
    make: Callable[[Any], Callable[[], Judge]],
    config: Any,
    answers: Connection,
    timeout_s: Seconds,
    memory_bytes: int,
) -> None:
    """Run the grammar worker process: load compilers, then run jobs until the pipe is closed.

    Args:
        make: `vllm_judge`, or another function with its signature.
        config: Argument of `make`.
        answers: See `Forks`.
        timeout_s: See `Forks`.
        memory_bytes: See `Forks`.
    """
    load_judge = make(config)
    answers.send_bytes(b"")
    Forks(answers, load_judge, timeout_s, memory_bytes).serve()
